#include "core/detail/param_scheduler_hook.h"
#include <limits>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/concat_text.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "metrics/metric.h"

namespace duet {

bool lacks_rule(const ReduceOnPlateau& options) {
  bool is_less = true;
  static_cast<void>(caught([&] { is_less = less_is_better("", options.monitor); }));  // a name may say nothing
  return options.rule.empty() && !is_less;
}

ParamSchedulerHook::ParamSchedulerHook(std::vector<Schedule> schedules) : schedules_(std::move(schedules)) {
  for (std::size_t i = 0; i < schedules_.size(); ++i) {
    check_schedule(schedules_[i]);
    const auto* plateau = std::get_if<ReduceOnPlateau>(&schedules_[i]);
    if (plateau == nullptr) continue;
    require<ConfigError>(!lacks_rule(*plateau),
                         "[ReduceOnPlateau] found no rule, though more of '" + plateau->monitor +
                             "' is better by its name, expected one; set rule to greater, or to less");
    plateaus_.push_back({i, PlateauWatch(*plateau), {}});
  }
}

namespace {

// By group; NaN for one that has not the number.
std::vector<double> values_of(const HyperParameters& numbers, const std::string& number) {
  std::vector<double> values(numbers.group_count(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t group = 0; group < values.size(); ++group) {
    if (numbers.has(group, number)) values[group] = numbers.get(group, number);
  }
  return values;
}

ScheduleRun run_of(const Progress& progress) { return {progress.run_length(), progress.steps_per_epoch}; }

}  // namespace

void ParamSchedulerHook::before_train(TrainContext& context) {
  if (schedules_.empty()) return;
  run_ = run_of(context.progress);
  validate_schedules(schedules_, run_);
  params_ = scheduled_numbers(schedules_, context.hyper_parameters);
  warn_of_gaps();
  remember_initial(context.hyper_parameters);
  draw_curves(context.hyper_parameters);
  for (const Plateau& plateau : plateaus_) {
    const std::string& monitor = plateau.watch.options().monitor;
    context.warn_without_validation("[ParamSchedulerHook] monitor '" + monitor + "' of ReduceOnPlateau");
  }
}

void ParamSchedulerHook::before_train_iter(TrainContext& context) {
  const ScheduleRun run = run_of(context.progress);
  if (curves_.empty() || run.steps == run_.steps) return;
  run_ = run;
  draw_curves(context.hyper_parameters);
}

void ParamSchedulerHook::draw_curves(HyperParameters& numbers) {
  curves_.clear();
  for (const auto& [number, param] : params_) curves_.emplace(number, ScheduleCurve(schedules_, param, run_));
  follow(numbers);
}

void ParamSchedulerHook::remember_initial(const HyperParameters& numbers) {
  for (const auto& [number, param] : params_) {
    ByGroup& initial = initial_[number];
    if (initial.empty()) initial = values_of(numbers, number);
    if (initial.size() == numbers.group_count()) continue;
    throw CheckpointError(c10::str("[ParamSchedulerHook] found initial values of ", number, " for ", initial.size(),
                                   " groups in the checkpoint, expected ", numbers.group_count(),
                                   "; resume with the param groups it was saved with"));
  }
}

void ParamSchedulerHook::warn_of_gaps() {
  if (std::exchange(warned_, true)) return;
  for (const std::string& gap : schedule_gaps(schedules_, run_)) log_warning(gap);
}

void ParamSchedulerHook::after_val_epoch(TrainContext& context) {
  const bool over = context.control.outcome != RunOutcome::kRunning && context.control.outcome != RunOutcome::kNone;
  if (curves_.empty() || over) return;  // a validation outside of training
  bool any = false;
  for (Plateau& plateau : plateaus_) {
    const ReduceOnPlateau& options = plateau.watch.options();
    if (!governs(options, context.progress.step)) continue;
    const auto metric = context.evaluation.metrics.find(options.monitor);
    if (metric == context.evaluation.metrics.end()) {
      throw ConfigError("[ParamSchedulerHook] found no metric '" + options.monitor + "', expected one of " +
                        join(keys_in(context.evaluation.metrics)) +
                        "; correct the monitor of ReduceOnPlateau, or add the metric");
    }
    if (!plateau.watch.observe(metric->second)) continue;
    reduce(plateau, context.hyper_parameters);
    any = true;
  }
  if (any) follow(context.hyper_parameters);
}

bool ParamSchedulerHook::governs(const Schedule& schedule, int64_t step) const {
  const ScheduleInterval interval = interval_of(in_steps(schedule, run_.steps_per_epoch));
  const int64_t now = interval.by_epoch ? step / run_.steps_per_epoch : step;
  return now >= interval.begin && (interval.end < 0 || now < interval.end);
}

void ParamSchedulerHook::reduce(Plateau& plateau, const HyperParameters& numbers) {
  const int64_t step = numbers.applied();
  for (const auto& [number, param] : params_) {
    if (param != plateau.watch.options().param_name) continue;
    ByGroup& reductions = plateau.reductions[number];
    reductions.resize(initial_.at(number).size(), 1.0);
    for (std::size_t group = 0; group < reductions.size(); ++group) {
      const double before = curves_.at(number).at(step, initial_.at(number)[group], reductions_of(number, group));
      const double after = plateau.watch.reduced(before);
      if (after < before) reductions[group] *= after / before;
    }
  }
}

ParamSchedulerHook::ByGroup ParamSchedulerHook::reductions_of(const std::string& number, std::size_t group) const {
  ByGroup reductions;
  for (const Plateau& plateau : plateaus_) {
    if (plateau.watch.options().param_name != params_.at(number)) continue;
    const auto found = plateau.reductions.find(number);
    reductions.push_back(found == plateau.reductions.end() ? 1.0 : found->second.at(group));
  }
  return reductions;
}

// The optimizer may outlive this hook, so a curve holds all it needs.
void ParamSchedulerHook::follow(HyperParameters& numbers) const {
  for (const auto& [number, curve] : curves_) {
    const ByGroup& initial = initial_.at(number);
    std::vector<ByGroup> reductions;
    for (std::size_t group = 0; group < initial.size(); ++group) reductions.push_back(reductions_of(number, group));
    numbers.set_schedule(number, [curve = curve, initial, reductions](std::size_t group, int64_t applied) {
      return curve.at(applied, initial.at(group), reductions.at(group));
    });
  }
}

namespace {

void put_by_group(StateDict& state, const std::string& prefix, const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) state.set(concat_text(prefix, ".", i), StateValue(values[i]));
}

// By number: what put_by_group() stored for `groups` groups.
std::map<std::string, std::vector<double>> get_by_group(const StateDict& state, int64_t groups) {
  std::map<std::string, std::vector<double>> values;
  for (const auto& entry : state.values()) {
    const std::string number = entry.first.substr(0, entry.first.rfind('.'));
    if (values.count(number) != 0) continue;
    for (int64_t i = 0; i < groups; ++i) values[number].push_back(state.number(concat_text(number, ".", i)));
  }
  return values;
}

}  // namespace

StateDict ParamSchedulerHook::state_dict() const {
  StateDict state;
  state.set("groups", StateValue(static_cast<int64_t>(initial_.empty() ? 0 : initial_.begin()->second.size())));
  for (const auto& [number, values] : initial_) put_by_group(state, "initial." + number, values);
  for (const Plateau& plateau : plateaus_) {
    const std::string prefix = concat_text("plateau.", plateau.schedule);
    state.put(prefix + ".watch", plateau.watch.state_dict());
    for (const auto& [number, values] : plateau.reductions)
      put_by_group(state, prefix + ".reductions." + number, values);
  }
  return state;
}

void ParamSchedulerHook::load_state_dict(const StateDict& state) {
  const int64_t groups = state.integer("groups");
  auto initial = get_by_group(state.part("initial"), groups);
  std::vector<Plateau> plateaus = plateaus_;
  for (Plateau& plateau : plateaus) {
    const StateDict part = state.part(concat_text("plateau.", plateau.schedule));
    if (part.values().empty()) continue;  // saved before the config had it: it begins here
    plateau.watch.load_state_dict(part.part("watch"));
    plateau.reductions = get_by_group(part.part("reductions"), groups);
  }
  initial_ = std::move(initial);
  plateaus_ = std::move(plateaus);
}

}  // namespace duet
