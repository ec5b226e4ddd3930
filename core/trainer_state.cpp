#include <duet/core/error.h>
#include <duet/core/random.h>
#include <duet/core/trainer.h>

#include <c10/util/StringUtil.h>

namespace duet {

// What a trainer keeps in a checkpoint and how it comes back.

StateDict BaseTrainer::state_dict() const {
  StateDict state;
  state.put("model", weights());
  state.put("optimizer", rule_->state_dict());
  state.put("random", random_state());
  state.put("hooks", hooks_.state_dict());
  state.put("data", data_ != nullptr ? data_->state_dict() : pending_data_state_);
  state.set("trainer.update", context_.update);
  state.set("trainer.epoch", context_.epoch);
  state.set("trainer.update_in_epoch", context_.update_in_epoch);
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
      problems += c10::str("\n  ", name, ": ", found->second.scalar_type(), found->second.sizes(), " in the checkpoint, ",
                           tensor.scalar_type(), tensor.sizes(), " in the model");
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

void BaseTrainer::load_weights(const StateDict& saved) {
  check_weights(saved);
  const StateDict own = weights();
  for (const auto& [name, tensor] : own.tensors()) copy_state("model." + name, saved.tensor(name), tensor);
}

void BaseTrainer::load_state_dict(const StateDict& state) {
  // The counters are read first: a state that is not a trainer's fails before anything changes.
  const int64_t update = state.integer("trainer.update");
  const int64_t epoch = state.integer("trainer.epoch");
  const int64_t update_in_epoch = state.integer("trainer.update_in_epoch");
  check_weights(state.part("model"));
  const StateDict random_before = random_state();
  set_random_state(state.part("random"));
  try {
    rule_->load_state_dict(state.part("optimizer"));
  } catch (const CheckpointError& error) {
    set_random_state(random_before);
    throw CheckpointError(c10::str("[Checkpoint] the optimizer's state does not fit: ", error.what(),
                                   "; use the optimizer that it was saved from"));
  }
  load_weights(state.part("model"));
  hooks_.load_state_dict(state.part("hooks"));
  pending_data_state_ = state.part("data");
  if (data_ != nullptr) data_->load_state_dict(pending_data_state_);
  context_.update = update;
  context_.epoch = epoch;
  context_.update_in_epoch = update_in_epoch;
  hooks_.call(HookPoint::kAfterLoadCheckpoint, context_);
}

}  // namespace duet
