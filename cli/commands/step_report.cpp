#include "cli/commands/step_report.h"
#include <optional>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/log.h"
#include "cli/build.h"
#include "cli/config/run_config.h"

namespace duet {

namespace {

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

}  // namespace

StepExplanation explain_first_step(const RunConfig& config, Run& run) {
  StepExplanation unknown;
  unknown.mode = config.mode;
  try {
    std::vector<Batch> batches = first_batches(config, run);
    if (!batches.empty()) return run.trainer->explain(std::move(batches));
    unknown.reason = "data.train gives no batch to try it with";
  } catch (const DataError& error) {
    log_warning(std::string("the first step cannot be tried: ") + error.what());
    unknown.reason = "its data cannot be read";
  }
  return unknown;
}

void add_explanation(const StepExplanation& explanation, nlohmann::ordered_json& graph) {
  using Json = nlohmann::ordered_json;
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

void refuse_if_strict(const RunConfig& config, const StepExplanation& explanation) {
  if (config.graph.fallback != Fallback::kStrict || explanation.obstacles.empty()) return;
  const StepExplanation::Obstacle& first = explanation.obstacles.front();
  throw GraphError("[GraphTrainer] the step cannot be captured; of the obstacles listed above the first is: " +
                   first.what + "; " + first.way_out + "; or set graph.fallback to auto");
}

}  // namespace duet
