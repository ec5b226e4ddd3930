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

// A run that is ready to start, and how it came to its groups.
struct Explained {
  RunConfig config;
  Run run;
  ParamGroups groups;
  std::vector<Schedule> schedules;
  ScheduleRun length;
};

Explained explain(const Arguments& arguments) {
  Explained result;
  result.config = load_run_config(arguments);
  RunConfig& config = result.config;
  try {
    if (config.train && !is_source(config.train->node)) result.run.train_data = make_dataset(config.train->node);
    if (config.train) build_loaders(config, result.run);
  } catch (const DataError& error) {
    log_warning(c10::str("data.train cannot be read, and schedules that count epochs are left out: ", error.what()));
    result.run = Run();
    std::erase_if(config.schedules, [](const auto& schedule) { return interval_of(schedule.options).by_epoch; });
  }
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
  if (!result.run.train) context.steps_per_epoch = 1;  // the order of hooks does not depend on it
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
  std::vector<std::pair<std::string, std::string>> blocks;  // points, lines of their hooks
  for (const auto& [point, reasons] : json["hook_reasons"].items()) {
    std::vector<std::vector<std::string>> rows;
    for (const auto& [name, reason] : reasons.items()) rows.push_back({"    " + name, reason});
    if (rows.empty()) continue;
    const std::string lines = text_columns(rows);
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

// The micro-batches of the first step; empty without data.
std::vector<Batch> first_batches(const RunConfig& config, Run& run) {
  std::vector<Batch> batches;
  if (run.train == nullptr) return batches;
  run.train->start_epoch(0);
  while (static_cast<int64_t>(batches.size()) < config.trainer.loop.accumulate) {
    std::optional<Batch> batch = run.train->next();
    if (!batch) break;
    batches.push_back(std::move(*batch));
  }
  return batches;
}

// What graph mode makes of the first step of the run's training data.
StepExplanation explain_first_step(const RunConfig& config, Run& run) {
  std::vector<Batch> batches = first_batches(config, run);
  if (!batches.empty()) return run.trainer->explain(std::move(batches));
  StepExplanation unknown;
  unknown.mode = config.mode;
  unknown.reason = "data.train gives no batch to try it with";
  return unknown;
}

// Its fields, for "graph" of --json.
void add_explanation(const StepExplanation& explanation, Json& graph) {
  graph["captured"] = explanation.captured;
  graph["reason"] = explanation.reason;
  Json& obstacles = graph["obstacles"] = Json::array();
  for (const auto& item : explanation.obstacles) {
    obstacles.push_back({{"op", item.op},
                         {"what", item.what},
                         {"where", item.where},
                         {"source", item.source},
                         {"way_out", item.way_out},
                         {"times", item.times}});
  }
  Json& splits = graph["splits"] = Json::array();
  for (const auto& split : explanation.splits) splits.push_back({{"point", split.point}, {"hooks", split.hooks}});
  graph["keeps_tensors"] = explanation.keeps_tensors;
  graph["reads"] = explanation.reads;
  graph["changes"] = explanation.changes;
  graph["left_out"] = explanation.left_out;
  Json& numbers = graph["hyper_parameters"] = Json::array();
  for (const auto& number : explanation.hyper_parameters) {
    numbers.push_back({{"group", number.group}, {"name", number.name}, {"reach", to_string(number.reach)}});
  }
  const StepExplanation::Ops& ops = explanation.ops;
  Json kernels = Json::object();
  for (const auto& [name, count] : ops.own_kernels) kernels[name] = count;
  graph["ops"] = {{"recorded", ops.recorded},
                  {"needed", ops.needed},
                  {"instructions", ops.instructions},
                  {"own_kernels", std::move(kernels)}};
  graph["bytes"] = explanation.bytes;
  graph["replay_us"] = explanation.replay_us;
  graph["eager_us"] = explanation.eager_us;
}

}  // namespace

void refuse_if_strict(const RunConfig& config, const StepExplanation& explanation) {
  if (config.graph.fallback != Fallback::kStrict || explanation.obstacles.empty()) return;
  const StepExplanation::Obstacle& first = explanation.obstacles.front();
  throw GraphError("[GraphTrainer] the step cannot be captured; of the obstacles listed above the first is: " +
                   first.what + "; " + first.way_out + "; or set graph.fallback to auto");
}

int explain_command(const Arguments& arguments) {
  Explained explained = explain(arguments);
  const RunConfig& config = explained.config;
  Json json = hooks_json(explained.run.trainer->hooks());
  json["param_groups"] = groups_json(explained);
  json["schedule"] = schedule_json(explained);
  json["graph"] = graph_json(config, json);
  json["training_ops"] = explained.run.trainer->task().training_ops();
  print_groups(json["param_groups"], explained);
  print_schedules(explained);
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
