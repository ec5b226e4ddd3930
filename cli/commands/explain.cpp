#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/build.h"
#include "cli/commands/commands.h"
#include "cli/commands/step_report.h"
#include "cli/report.h"
#include "cli/runs/text_columns.h"
#include "core/hook.h"
#include "hooks/stop_signal_hook.h"
#include "optim/groups/param_group.h"
#include "optim/optimizers/optimizer_options.h"
#include "optim/schedules/detail/schedule_rules.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kListedSteps = 2000;
constexpr int64_t kCheckedSteps = 20000;  // spread over the run

// A run that is ready to start, and how it came to its groups.
struct Explained {
  RunConfig config;
  Run run;
  ParamGroups groups;
  std::vector<Schedule> schedules;
  ScheduleRun length;
};

// Only models that ask their data for something need it.
void read_data_if_there(const RunConfig& config, Run& run) {
  if (!config.train) return;
  try {
    if (!is_source(config.train->node)) run.train_data = make_dataset(config.train->node);
    build_loaders(config, run);
  } catch (const DataError& error) {
    log_warning(c10::str("data.train cannot be read, so the length of an epoch is unknown: ", error.what()));
  }
}

// Schedules that count epochs of unknown length are left out.
void drop_epochs(RunConfig& config) {
  const auto by_epoch = [](const ScheduleConfig& schedule) { return interval_of(schedule.options).by_epoch; };
  if (std::any_of(config.schedules.begin(), config.schedules.end(), by_epoch)) {
    log_warning("param_scheduler counts epochs, whose length is unknown: schedules are left out");
    config.schedules.clear();
  }
}

Explained explain(const Arguments& arguments) {
  Explained result;
  result.config = load_run_config(arguments);
  RunConfig& config = result.config;
  read_data_if_there(config, result.run);
  const bool unread = result.run.train == nullptr;
  if (result.run.steps_per_epoch == 0) drop_epochs(config);

  // Kept on their way into the optimizer: made a second time they would warn a second time.
  const auto made = std::make_shared<ParamGroups>();
  RunConfig watched = config;
  watched.trainer.param_groups = [made, make = config.trainer.param_groups](Task& task,
                                                                            const OptimizerOptions& optimizer) {
    return *made = make ? make(task, optimizer) : paramwise_groups(task, optimizer, {});
  };
  build_trainer(watched, config.mode, config.trainer.loop, result.run);
  result.groups = *made;
  result.schedules = schedules_of(config, result.run);
  result.length = {planned_steps(config.trainer.loop, result.run.steps_per_epoch), result.run.steps_per_epoch};
  HookContext context = hook_context(config, result.run);
  if (unread) context.steps_per_epoch = 1;  // the order of hooks does not depend on it
  add_hooks(config.hooks, context, *result.run.trainer);
  result.run.trainer->add_hook(std::make_unique<StopSignalHook>());  // as `duet train` does
  return result;
}

// Every group with its numbers.
Json groups_json(const Explained& explained) {
  const HyperParameters& numbers = explained.run.trainer->hyper_parameters();
  Json groups = Json::array();
  for (std::size_t i = 0; i < explained.groups.size(); ++i) {
    Json group = {{"name", explained.groups[i].name}};
    for (const std::string& name : numbers.names()) {
      if (numbers.has(i, name)) group[name] = numbers.get(i, name);
    }
    int64_t elements = 0;
    Json names = Json::array();
    for (const auto& [name, parameter] : explained.groups[i].parameters) {
      elements += parameter.numel();
      names.push_back(name);
    }
    group["elements"] = elements;
    group["params"] = std::move(names);
    groups.push_back(std::move(group));
  }
  return groups;
}

void print_groups(const Json& groups, const Explained& explained) {
  const std::vector<std::string> columns = explained.run.trainer->hyper_parameters().names();
  std::vector<std::vector<std::string>> rows = {{"    ", "name"}};
  rows.back().insert(rows.back().end(), columns.begin(), columns.end());
  rows.back().insert(rows.back().end(), {"parameters", "elements"});
  for (const Json& group : groups) {
    rows.push_back({c10::str("  ", rows.size() - 1), group["name"].get<std::string>()});
    for (const std::string& name : columns) {
      rows.back().push_back(group.contains(name) ? number_text(group[name]) : "-");
    }
    rows.back().insert(rows.back().end(), {std::to_string(group["params"].size()), group["elements"].dump()});
  }
  std::cout << "parameter groups of " << explained.config.trainer.optimizer.type() << ":\n" << text_columns(rows);
}

// Every number that changes, and the learning rate in any case.
Json schedule_json(const Explained& explained) {
  const HyperParameters& numbers = explained.run.trainer->hyper_parameters();
  const int64_t steps = explained.length.steps > 0 ? std::min(explained.length.steps, kListedSteps) : kListedSteps;
  auto table = schedule_table(explained.schedules, numbers, explained.length, steps);
  if (table.count("lr") == 0) {
    std::vector<double> rates;
    for (std::size_t i = 0; i < numbers.group_count(); ++i) rates.push_back(numbers.get(i, "lr"));
    table["lr"].assign(static_cast<std::size_t>(steps), rates);
  }
  return table;
}

// "hook_order": {point: [names]} and "hook_reasons": {point: {name: reason}}.
Json hooks_json(const HookList& hooks) {
  Json order, reasons;
  for (int i = 0; i < static_cast<int>(HookPoint::kCount); ++i) {
    const auto point = static_cast<HookPoint>(i);
    Json& names = order[to_string(point)] = Json::array();
    Json& why = reasons[to_string(point)] = Json::object();
    for (const HookPlace& place : hooks.places(point)) {
      names.push_back(place.name);
      why[place.name] = place.reason;
    }
  }
  return {{"hook_order", std::move(order)}, {"hook_reasons", std::move(reasons)}};
}

// Those of one of these points, each once.
std::vector<std::string> hooks_at(const Json& json, const std::vector<HookPoint>& points) {
  std::vector<std::string> names;
  for (const HookPoint point : points) {
    for (const Json& name : json["hook_order"][to_string(point)]) {
      if (std::ranges::count(names, name.get<std::string>()) == 0) names.push_back(name);
    }
  }
  return names;
}

// For every point at which somebody acts: who, in which order, and why there; points with the same hooks together.
// Then what the hooks mean for a captured step.
void print_hooks(const Json& json) {
  std::size_t width = 0;
  for (const auto& [point, names] : json["hook_order"].items()) {
    for (const Json& name : names) width = std::max(width, name.get_ref<const std::string&>().size());
  }
  std::vector<std::pair<std::string, std::string>> blocks;  // points, lines of their hooks
  for (const auto& [point, reasons] : json["hook_reasons"].items()) {
    std::string lines;
    for (const auto& [name, reason] : reasons.items()) {
      lines += "    " + name + std::string(width + 2 - name.size(), ' ') + reason.get<std::string>() + "\n";
    }
    if (lines.empty()) continue;
    const auto same = std::ranges::find(blocks, lines, &std::pair<std::string, std::string>::second);
    if (same != blocks.end()) {
      same->first += ", " + point;
    } else {
      blocks.emplace_back(point, lines);
    }
  }
  std::cout << "hooks by point, in calling order:\n";
  for (const auto& [points, lines] : blocks) std::cout << "  " << points << "\n" << lines;
  const auto print_names = [](const char* text, const std::vector<std::string>& names) {
    if (!names.empty()) std::cout << text << join(names) << "\n";
  };
  print_names("captured with the step: ", json["graph"]["captured_hooks"]);
  print_names("acting between backward and optimizer, so that graph mode splits the captured step there: ",
              json["graph"]["split_by"]);
}

// The word of one of its enums.
std::string word_of(const GraphOptions& options, const std::string& field) {
  return std::get<std::string>(GraphOptions::fields().find(field)->get(&options));
}

// What the config asks of graph mode, and what its hooks mean for a captured step.
Json graph_json(const RunConfig& config, const Json& hooks) {
  return {{"mode", config.mode},
          {"fallback", word_of(config.graph, "fallback")},
          {"fuse", word_of(config.graph, "fuse")},
          {"cache_bytes", config.graph.cache_bytes},
          {"verify_interval", config.graph.verify_interval},
          {"captured_hooks", hooks_at(hooks, {HookPoint::kInStep})},
          {"split_by", hooks_at(hooks, {HookPoint::kAfterBackward, HookPoint::kBeforeOptimizerStep})}};
}

// Where a schedule takes a number to a value that the optimizer does not allow: of each number and group the first.
std::vector<std::string> schedule_problems(const Explained& explained) {
  std::vector<std::string> problems;
  const HyperParameters& numbers = explained.run.trainer->hyper_parameters();
  const int64_t steps = explained.length.steps > 0 ? explained.length.steps : kListedSteps;
  const int64_t stride = std::max<int64_t>(steps / kCheckedSteps, 1);
  for (const auto& [number, param_name] : scheduled_numbers(explained.schedules, numbers)) {
    const ScheduleCurve curve(explained.schedules, param_name, explained.length);
    for (std::size_t group = 0; group < numbers.group_count(); ++group) {
      if (!numbers.has(group, number)) continue;
      const double initial = numbers.get(group, number);
      for (int64_t step = 0; step < steps; step += stride) {
        try {
          explained.config.trainer.optimizer.check_number(number, curve.at(step, initial));
        } catch (const ConfigError& error) {
          problems.push_back(c10::str("param_scheduler leaves the range of ", number, " at step ", step, " in group ",
                                      group, ": ", error.what()));
          break;
        }
      }
    }
  }
  return problems;
}

// A few values across the run, of the first group that has the number.
void print_schedules(const Explained& explained) {
  const HyperParameters& numbers = explained.run.trainer->hyper_parameters();
  const int64_t steps = explained.length.steps > 0 ? explained.length.steps : kListedSteps;
  for (const auto& [number, param_name] : scheduled_numbers(explained.schedules, numbers)) {
    std::size_t group = 0;
    while (!numbers.has(group, number)) ++group;
    const ScheduleCurve curve(explained.schedules, param_name, explained.length);
    std::cout << number << " of group " << group << " by step:";
    constexpr int64_t kShown = 8;
    int64_t last = -1;
    for (int64_t i = 0; i <= kShown; ++i) {
      const int64_t step = i * (steps - 1) / kShown;
      if (step == last) continue;
      last = step;
      std::cout << "  " << step << ": " << number_text(curve.at(step, numbers.get(group, number)));
    }
    std::cout << "\n";
  }
  if (explained.schedules.empty()) std::cout << "no schedule: every number stays as it is\n";
  for (const std::string& gap : schedule_gaps(explained.schedules, explained.length)) log_warning(gap);
}

}  // namespace

int explain_command(const Arguments& arguments) {
  Explained explained = explain(arguments);
  const RunConfig& config = explained.config;
  Json json = hooks_json(explained.run.trainer->hooks());
  json["param_groups"] = groups_json(explained);
  json["schedule"] = schedule_json(explained);
  json["schedule_problems"] = schedule_problems(explained);
  json["graph"] = graph_json(config, json);
  json["training_ops"] = explained.run.trainer->task().training_ops();
  print_groups(json["param_groups"], explained);
  print_schedules(explained);
  for (const Json& problem : json["schedule_problems"]) log_warning(problem.get<std::string>());
  print_hooks(json);
  for (const Json& op : json["training_ops"]) std::cout << "off in evaluation: " << op.get<std::string>() << "\n";
  std::cout << "mode: " << config.mode << " (graph: fallback " << word_of(config.graph, "fallback") << ")\n";
  std::optional<StepExplanation> step;
  if (config.mode == "graph") {
    step = explain_first_step(config, explained.run);
    std::cout << step->text();
    add_explanation(*step, json["graph"]);
  }
  std::cout.flush();
  write_json(arguments.json, json);
  if (step) refuse_if_strict(config, *step);
  return 0;
}

}  // namespace duet
