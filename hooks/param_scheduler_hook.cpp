#include <duet/hooks/param_scheduler_hook.h>

#include <c10/util/StringUtil.h>
#include <duet/core/error.h>
#include <duet/hooks/run_length.h>

namespace duet {

ParamSchedulerHook::ParamSchedulerHook(std::vector<ScheduleOptions> schedules) : schedules_(std::move(schedules)) {
  for (const ScheduleOptions& schedule : schedules_) schedule.validate();
}

void ParamSchedulerHook::before_train(TrainContext& context) {
  if (schedules_.empty()) return;
  run_length_ = run_length(context);
  validate_schedules(schedules_, run_length_);

  const std::size_t groups = context.hyper_parameters.group_count();
  if (initial_.empty()) {
    for (std::size_t group = 0; group < groups; ++group) initial_.push_back(context.hyper_parameters.get(group, "lr"));
  }
  if (initial_.size() != groups) {
    throw CheckpointError(c10::str("[ParamSchedulerHook] found initial learning rates of ", initial_.size(),
                                   " groups in the checkpoint, expected ", groups,
                                   "; resume with the param groups it was saved with"));
  }
  apply(context);
}

void ParamSchedulerHook::after_train_iter(TrainContext& context) {
  if (!initial_.empty()) apply(context);  // empty: no schedules, or a loop without before_train
}

void ParamSchedulerHook::apply(TrainContext& context) const {
  if (schedules_.empty()) return;
  for (std::size_t group = 0; group < initial_.size(); ++group) {
    const double rate = scheduled_lr(schedules_, context.update, initial_[group], run_length_);
    // A rate that stays costs nothing: setting it is a write to the device.
    if (context.hyper_parameters.get(group, "lr") != rate) context.hyper_parameters.set(group, "lr", rate);
  }
}

StateDict ParamSchedulerHook::state_dict() const {
  StateDict state;
  state.set("groups", StateValue(static_cast<int64_t>(initial_.size())));
  for (std::size_t i = 0; i < initial_.size(); ++i) state.set(c10::str("initial_lr.", i), StateValue(initial_[i]));
  return state;
}

void ParamSchedulerHook::load_state_dict(const StateDict& state) {
  std::vector<double> initial;
  for (int64_t i = 0; i < state.integer("groups"); ++i) initial.push_back(state.number(c10::str("initial_lr.", i)));
  initial_ = std::move(initial);
}

}  // namespace duet
