#include "checkpoint/checkpoint.h"
#include "distributed/run_on_ranks.h"
#include "core/detail/group_checkpoint.h"
#include "base/error.h"
#include "checkpoint/detail/load_transaction.h"
#include "base/random.h"
#include "core/detail/tied_names.h"
#include "core/trainer.h"

#include <c10/util/StringUtil.h>

namespace duet {

// What a trainer keeps in a checkpoint and how it comes back.

StateDict BaseTrainer::CheckpointState::state_dict() const {
  trainer_.report("checkpoint");
  StateDict state;
  run_on_all_ranks(trainer_.context_.communicator, [&] {
    trainer_.rule_->settle();
    trainer_.hooks_.call(HookPoint::kBeforeSaveCheckpoint, trainer_.context_);
    state = trainer_.state_dict();
  });
  trainer_.add_state_of_ranks(state);
  return state;
}

void BaseTrainer::CheckpointState::load_state_dict(const StateDict& state) { trainer_.load_state_dict(state); }

StateDict BaseTrainer::state_dict() const {
  StateDict state;
  state.put("model", weights());
  for (const auto& [further, own] : tied_names_of(rule_->task())) state.set("tied." + further, own);
  state.put("optimizer", rule_->state_dict());
  state.put("random", random_state());
  state.put("hooks", hooks_.state_dict());
  state.put("data", data_ != nullptr ? data_->state_dict() : pending_data_state_);
  state.set("trainer.step", context_.progress.step);
  state.set("trainer.epoch", context_.progress.epoch);
  state.set("trainer.step_in_epoch", context_.progress.step_in_epoch);
  state.set("trainer.validated_step", validated_step_);
  if (output_.loss.defined()) state.set("trainer.loss", output_.loss.detach());
  return state;
}

StateDict BaseTrainer::weights() const {
  StateDict state;
  Task& task = rule_->task();
  for (const auto& [name, tensor] : task.named_parameters()) state.set(name, tensor.detach());
  for (const auto& [name, tensor] : task.named_buffers()) state.set(name, tensor.detach());
  return state;
}

void BaseTrainer::check_weights(const StateDict& saved) const {
  const StateDict own = weights();
  std::string problems;
  for (const auto& [name, tensor] : own.tensors()) {
    const auto found = saved.tensors().find(name);
    if (found == saved.tensors().end()) {
      problems += "\n  missing in the checkpoint: " + name;
    } else if (found->second.sizes() != tensor.sizes() || found->second.scalar_type() != tensor.scalar_type()) {
      problems += c10::str("\n  ", name, ": ", found->second.scalar_type(), found->second.sizes(),
                           " in the checkpoint, ", tensor.scalar_type(), tensor.sizes(), " in the model");
    }
  }
  for (const auto& entry : saved.tensors()) {
    if (own.tensors().count(entry.first) == 0) problems += "\n  unknown to the model: " + entry.first;
  }
  if (!problems.empty()) {
    throw CheckpointError("[Checkpoint] these weights belong to another model:" + problems +
                          "\nload them into the model they were saved from");
  }
}

void BaseTrainer::load_weights(const StateDict& saved, std::optional<int64_t> step) {
  check_weights(saved);
  const StateDict own = weights();
  for (const auto& [name, tensor] : own.tensors()) copy_state("model." + name, saved.tensor(name), tensor);
  if (step) context_.progress.step = *step;
}

namespace {

// The default generators as a part of the trainer's state.
class RandomState : public Stateful {
 public:
  StateDict state_dict() const override { return random_state(); }
  void load_state_dict(const StateDict& state) override { set_random_state(state); }
};

bool is_empty(const StateDict& state) { return state.tensors().empty() && state.values().empty(); }

}  // namespace

void BaseTrainer::load_state_dict(const StateDict& saved) {
  const StateDict state = state_of_this_rank(saved);
  // Everything that may fail comes before the weights, and is taken back if a later part does.
  const int64_t step = state.integer("trainer.step");
  const int64_t epoch = state.integer("trainer.epoch");
  const int64_t step_in_epoch = state.integer("trainer.step_in_epoch");
  const int64_t validated_step = state.integer("trainer.validated_step");
  check_weights(state.part("model"));
  LoadTransaction parts;
  RandomState random;
  parts.load(random, state.part("random"));
  hooks_.load_into(parts, state.part("hooks"));
  if (data_ != nullptr) parts.load(*data_, state.part("data"));
  try {
    rule_->load_state_dict(state.part("optimizer"));
  } catch (const CheckpointError& error) {
    throw CheckpointError(c10::str("[Checkpoint] the optimizer's state does not fit: ", error.what(),
                                   "; use the optimizer that it was saved from"));
  }
  parts.commit();
  load_weights(state.part("model"));
  pending_data_state_ = data_ == nullptr ? state.part("data") : StateDict();
  context_.progress.step = step;
  context_.progress.epoch = epoch;
  context_.progress.step_in_epoch = step_in_epoch;
  validated_step_ = validated_step;
  output_ = {};
  if (state.has("trainer.loss")) {
    const at::Tensor& loss = state.tensor("trainer.loss");
    output_.loss = loss.to(device_, loss.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  hooks_.call(HookPoint::kAfterLoadCheckpoint, context_);
}

void BaseTrainer::load_position(DataSource& data) {
  if (is_empty(pending_data_state_)) return;
  const char* const way_out =
      "; train on the source that the state was saved with, or take its weights alone with load_weights()";
  if (is_empty(data.state_dict())) {
    throw CheckpointError(
        c10::str("[BaseTrainer] found a data source that keeps no position, expected one that goes on "
                 "where training stopped",
                 way_out));
  }
  try {
    data.load_state_dict(pending_data_state_);
  } catch (const CheckpointError& error) {
    throw CheckpointError(c10::str("[BaseTrainer] found a data source that cannot go on where training stopped (",
                                   error.what(), "), expected one of the same kind and size", way_out));
  }
  pending_data_state_ = {};
}

std::string BaseTrainer::save(const std::string& folder) {
  CheckpointStore store(folder, {.max_keep = -1});
  return save_checkpoint(store, context_);
}

void BaseTrainer::load(const std::string& path) {
  std::string found = path;
  run_on_main(context_.communicator, [&] { found = CheckpointStore::find(path); });
  if (context_.communicator != nullptr) found = context_.communicator->broadcast(found);
  run_on_all_ranks(context_.communicator, [&] { load_state_dict(CheckpointStore::load(found)); });
}

}  // namespace duet
