#include "cli/train_record.h"
#include <cmath>
#include <optional>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/build.h"
#include "core/trainer.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

// An error may have cost the run its device: then what can still be told.
Json report_of_failed(Run& run, const TrainRecord& record) {
  Json json;
  if (!caught([&] { json = report_of(run, record.mode, record.measured); })) return json;
  return {{"mode", record.mode}, {"steps", run.trainer->progress().step}, {"losses", record.measured.losses}};
}

const char* state_of(const BaseTrainer& trainer, const TrainEnd& end) {
  const bool has_diverged = end.exit_code == NonFiniteError("").exit_code();
  return to_string(has_diverged ? RunOutcome::kDiverged : end.error ? RunOutcome::kFailed : trainer.outcome());
}

// Nothing for a name that does not say it.
std::optional<bool> direction_of(const std::string& name) {
  try {
    return less_is_better("duet", name);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

}  // namespace

void ValidationRecord::add(const MetricValues& results, int64_t step) {
  last_ = results;
  for (const auto& [name, value] : results) {
    const std::optional<bool> is_less_better = direction_of(name);
    if (!is_less_better) continue;
    const auto found = best_.try_emplace(name, BestValue{.is_less_better = *is_less_better}).first;
    found->second.add(value, static_cast<double>(step));
  }
}

Json ValidationRecord::json() const {
  Json json = {{"final", last_}, {"best", Json::object()}};
  for (const auto& [name, best] : best_) {
    if (std::isnan(best.value)) continue;
    json["best"][name] = {{"value", best.value}, {"step", static_cast<int64_t>(best.step)}};
  }
  return json;
}

void write_train_record(const std::string& path, Run& run, const TrainRecord& record, const TrainEnd& end) {
  if (path.empty()) return;
  Json json = end.error ? report_of_failed(run, record) : report_of(run, record.mode, record.measured);
  json["metrics"] = record.validations.json();
  json["state"] = state_of(*run.trainer, end);
  json["exit_code"] = end.exit_code;
  json["reason"] = end.error ? failure_of(end.error).text : run.trainer->stop_reason();
  write_json(path, json);
}

}  // namespace duet
