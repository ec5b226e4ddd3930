#include "core/detail/run_state.h"
#include <filesystem>
#include <set>
#include <sstream>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/detail/concat_text.h"
#include "base/detail/tensor_copies.h"
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "core/detail/train_step.h"
#include "core/hook.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

StateDict RunState::state_dict() const {
  const Progress& progress = context_.progress;
  StateDict state;
  state.put("model", weights());
  for (const auto& [further, own] : step_.task().tied_names()) state.set("tied." + further, own);
  state.put("optimizer", step_.state_dict());
  state.put("random", all_random_state());
  state.put("hooks", hooks_.state_dict());
  state.put("data", data_ != nullptr ? data_->state_dict() : position_);
  state.set("trainer.step", progress.step);
  state.set("trainer.epoch", progress.epoch);
  state.set("trainer.step_in_epoch", progress.step_in_epoch);
  state.set("trainer.validated_step", validated_step);
  if (loss.defined()) state.set("trainer.loss", loss.detach());
  return state;
}

StateDict RunState::weights() const { return weights_of(step_.task()); }

void RunState::load_state_dict(const StateDict& state) {
  for (const char* counter : {"step", "epoch", "step_in_epoch", "validated_step"}) {
    static_cast<void>(state.integer(std::string("trainer.") + counter));  // throws if it is missing
  }
  match_weights(step_.task(), state.part("model"), /*strict=*/true);
  hooks_.load_state_dict(state.part("hooks"));
  restore_but_hooks(state);
}

void RunState::restore(const StateDict& before) {
  hooks_.restore(before.part("hooks"));
  restore_but_hooks(before);
}

void RunState::begin_epoch_again() {
  const StateDict before = copy_of(state_dict(), at::kCPU);
  hooks_.call_stateless(HookPoint::kBeforeTrainEpoch, context_);
  restore_but_hooks(before);
}

// Everything that may fail comes before the weights.
void RunState::restore_but_hooks(const StateDict& state) {
  set_all_random_state(state.part("random"));
  try {
    step_.load_state_dict(state.part("optimizer"));
  } catch (const CheckpointError& error) {
    throw CheckpointError(c10::str("[Checkpoint] the optimizer's state does not fit: ", error.what(),
                                   "; use the optimizer that it was saved from"));
  }
  load_matching_weights(step_.task(), state.part("model"));
  load_counters(state);
}

void RunState::move_data(const StateDict& position) {
  if (data_ != nullptr) return data_->load_state_dict(position);
  position_ = position;
}

void RunState::load_counters(const StateDict& state) {
  context_.progress.step = state.integer("trainer.step");
  context_.progress.epoch = state.integer("trainer.epoch");
  context_.progress.step_in_epoch = state.integer("trainer.step_in_epoch");
  validated_step = state.integer("trainer.validated_step");
  loss = at::Tensor();
  if (!state.has("trainer.loss")) return;
  const at::Tensor& saved = state.tensor("trainer.loss");
  const at::Device device = step_.parameters().front().second.device();
  loss = saved.to(device, saved.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

void RunState::attach(DataSource& data) {
  data.set_shard(step_.communicator().rank(), step_.communicator().world_size());
  if (!position_.empty()) {
    const char* const way_out =
        "; train on the source that the state was saved with, or take its weights alone with load_weights()";
    if (data.state_dict().empty()) {
      throw CheckpointError(
          c10::str("[BaseTrainer] found a data source that keeps no position, expected one that goes on ",
                   "where training stopped", way_out));
    }
    try {
      data.load_state_dict(position_);
    } catch (const CheckpointError& error) {
      throw CheckpointError(c10::str("[BaseTrainer] found a data source that cannot go on where training stopped (",
                                     error.what(), "), expected one of the same kind and size", way_out));
    }
    position_ = {};
  }
  data_ = &data;
  context_.data = &data;
}

void RunState::release() {
  DataSource* const data = data_;
  data_ = nullptr;
  context_.data = nullptr;
  if (data != nullptr) position_ = data->state_dict();
}

namespace {

// The model's buffers, and those in the averages of hooks, by their names in a trainer's state; on the host.
StateDict buffers_in(const StateDict& state, Task& task) {
  std::set<std::string> names;
  for (const auto& item : task.named_buffers()) names.insert(item.first);
  StateDict found;
  for (const auto& [name, tensor] : state.tensors()) {
    const std::string prefix = checkpoint_format::place_of(name).prefix;
    const bool is_buffer = !prefix.empty() && names.count(name.substr(prefix.size())) != 0;
    if (is_buffer) found.set(name, tensor.detach().cpu().contiguous());
  }
  return found;
}

// Those of `own` that differ from rank 0's, found by their hashes.
StateDict unlike_main(const StateDict& own, Communicator& ranks) {
  const auto line_of = [](const std::string& name, const at::Tensor& tensor) {
    return c10::str(bits_hash(tensor), " ", tensor.scalar_type(), tensor.sizes(), " ", name);
  };
  std::string lines;
  for (const auto& [name, tensor] : own.tensors()) lines += line_of(name, tensor) + "\n";
  std::istringstream main(ranks.broadcast(lines));
  std::set<std::string> of_main;
  for (std::string line; std::getline(main, line);) of_main.insert(line);
  StateDict differing;
  for (const auto& [name, tensor] : own.tensors()) {
    if (of_main.count(line_of(name, tensor)) == 0) differing.set(name, tensor);
  }
  return differing;
}

bool is_of_as_many(const StateDict& saved, const Communicator& ranks) {
  const auto has = [&](int64_t rank) { return saved.has(concat_text("random_ranks.", rank, ".cpu")); };
  return has(ranks.world_size() - 1) && !has(ranks.world_size());
}

StateDict new_random_state(const StateDict& saved, int64_t rank) {
  const auto step = static_cast<uint64_t>(saved.integer("trainer.step"));
  const StateDict present = random_state();
  set_random_state(saved.part("random"));
  seed_all(rank_seed(default_seed() + step, rank));
  StateDict own = random_state();
  set_random_state(present);
  return own;
}

}  // namespace

void add_rank_state(StateDict& state, Task& task, Communicator& ranks) {
  if (ranks.is_single()) return;
  StateDict own;
  own.put("random", all_random_state());
  own.put("buffers", unlike_main(buffers_in(state, task), ranks));
  own.put("data", state.part("data"));
  const std::vector<StateDict> all = gather_state(ranks, own);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    state.put(concat_text("random_ranks.", rank), all[rank].part("random"));
    state.put(concat_text("buffers_ranks.", rank), all[rank].part("buffers"));
    state.put(concat_text("data_ranks.", rank), all[rank].part("data"));
  }
}

StateDict own_rank_state(const StateDict& saved, const Communicator& ranks) {
  const bool as_many = is_of_as_many(saved, ranks);
  if (ranks.is_main() && !as_many && !saved.part("buffers_ranks").tensors().empty()) {
    log_info(
        "[Checkpoint] it was saved by another number of ranks, each with buffers of its own: those of rank 0 are "
        "used everywhere");
  }
  if (ranks.is_main()) return saved;
  StateDict own = saved.without("random");
  if (!as_many) {
    own.put("random", new_random_state(saved, ranks.rank()));
    return own;
  }
  own.put("random", saved.part(concat_text("random_ranks.", ranks.rank())));
  if (const StateDict data = saved.part(concat_text("data_ranks.", ranks.rank())); !data.empty()) {
    own = own.without("data");
    own.put("data", data);
  }
  const StateDict buffers = saved.part(concat_text("buffers_ranks.", ranks.rank()));
  for (const auto& [name, tensor] : buffers.tensors()) own.set(name, tensor);
  return own;
}

StateDict with_numbers_of(StateDict state, const StateDict& own) {
  const std::string configured = "optimizer.configured.";
  for (const auto& [name, value] : own.values()) {
    if (name.starts_with("optimizer.state.") && name.ends_with(".group") && state.has(name)) state.set(name, value);
    if (!name.starts_with(configured) || !state.has(name)) continue;
    if (state.number(name) == std::get<double>(value)) continue;
    const std::string rest = name.substr(configured.size());  // "0.lr"
    const std::size_t dot = rest.find('.');
    state.set(name, value);
    state.set("optimizer.param_groups." + rest, value);
    const std::string initial =
        concat_text("hooks.param_scheduler.initial.", rest.substr(dot + 1), ".", rest.substr(0, dot));
    if (state.has(initial)) state.set(initial, value);
  }
  return state;
}

LoadedCheckpoint read_on_main(Communicator& ranks, const std::string& path) {
  LoadedCheckpoint found;
  run_on_main(ranks, [&] { found = CheckpointStore::read(path); });
  found.path = ranks.broadcast(found.path);
  found.state = broadcast_state(ranks, found.state);
  return found;
}

namespace {

// The newest good checkpoint to go back to. An earlier one where the first step from the last one went wrong on other
// data as well: its weights are the cause.
std::string find_good(const CheckpointStore& store, const RunControl& control) {
  const int64_t suspect = control.rolled_back_to, bad_step = control.rollback_bad_step;
  if (control.times_rolled_back_to >= 2 && bad_step == suspect + 1) {
    if (const auto earlier = store.find_latest(suspect - 1)) {
      log_warning(c10::str("[BaseTrainer] the first step from the checkpoint of step ", suspect, " went wrong ",
                           control.times_rolled_back_to, " times, on other data each: its weights may be the cause"));
      return *earlier;
    }
  }
  const std::optional<std::string> good = store.find_latest(bad_step - 1);
  if (!good) throw CheckpointError(c10::str("there is none of a step before ", bad_step, " in '", store.root(), "'"));
  return *good;
}

// Leaves the checkpoint to go back to as the newest of all. Those since then may hold finite weights, and yet what went
// wrong. Those that are damaged go with them.
void leave_good_ones(const std::string& root, const RunControl& control) {
  CheckpointStore store(root);
  const int64_t step =
      checkpoint_format::parse_folder_name(checkpoint_format::name_of(find_good(store, control)))->step;
  const std::string aside = store.set_aside_after(step);
  if (aside.empty()) return;
  log_warning(c10::str("[BaseTrainer] the checkpoints of steps after ", step,
                       " come from steps that went wrong, or led to such: they are now in '", aside, "'"));
}

}  // namespace

LoadedCheckpoint read_rollback(const TrainContext& context) {
  const RunControl& control = context.control;
  const std::string root = CheckpointStore::root_of(context.work_dir);
  try {
    require<CheckpointError>(!context.work_dir.empty(), "there are none without a work_dir");
    run_on_main(*context.communicator, [&] { leave_good_ones(root, control); });
    return read_on_main(*context.communicator, root);
  } catch (const CheckpointError& error) {
    // Not for want of a checkpoint does the run end, but because it has diverged.
    throw NonFiniteError(c10::str("[BaseTrainer] found that training has diverged (", control.rollback_reason,
                                  ") at step ", context.progress.step, ", expected a checkpoint to go back to: ",
                                  error.what(), "; save more often, lower the learning rate or clip gradients"));
  }
}

void tell_saved(const std::string& path, TrainContext& context) {
  context.saved_checkpoint = path;
  context.trainer.call_hooks(HookPoint::kAfterSaveCheckpoint);
}

StateBeforeEvaluation::StateBeforeEvaluation(const Task& task)
    : random_(all_random_state()), buffers_(task.named_buffers()), copies_(copy_of(buffers_)) {}

void StateBeforeEvaluation::put_back() const {
  set_all_random_state(random_);
  restore(copies_, buffers_);
}

std::string save_checkpoint(CheckpointStore& store, TrainContext& context, const SaveOptions& options) {
  const StateDict state = context.trainer.checkpoint_state();
  std::string path;
  run_on_main(*context.communicator, [&] {
    CheckpointBranch& branch = context.branch;
    const std::string folder = std::filesystem::weakly_canonical(store.root()).string();
    if (!branch.folders.contains(folder)) store.go_on_from(branch.step);
    store.set_identity(context.identity);
    const auto save = options.in_background ? &CheckpointStore::save_in_background : &CheckpointStore::save;
    path = (store.*save)(context.progress.step, state, options.keep, options.best);
  });
  path = context.communicator->broadcast(path);
  context.branch.folders.insert(std::filesystem::weakly_canonical(path).parent_path().string());  // on every rank
  return path;
}

void mark_suspects(const CheckpointBranch& branch, const DoubtError& error) {
  for (const std::string& folder : branch.folders) {
    const CheckpointStore store(folder);
    const std::exception_ptr failed = caught([&] { store.mark_suspect_after(error.sound_step(), error.what()); });
    if (failed) log_warning(text_of(failed));
  }
}

}  // namespace duet
