#include <algorithm>
#include <cmath>
#include <limits>
#include "base/error.h"
#include "cli/runs/run_folder.h"
#include "metrics/metric.h"

namespace duet {

namespace {

// Of cells of a confusion matrix none is a figure to go by.
bool is_candidate(const Curve& curve) {
  return curve.kind != "train" && !curve.points.empty() && curve.name.find("confusion_") == std::string::npos;
}

// The first one of a list.
std::string metric_of_best(const SavedConfig& config) {
  const std::string text = config.text("default_hooks.checkpoint.save_best");
  return text.starts_with("[") ? text.substr(1, text.find_first_of(",]") - 1) : text;
}

const Curve* chosen_curve(const SavedConfig& config, const LoggedRun& log) {
  const std::string wanted = metric_of_best(config);
  for (const char* kind : {"val", "test"}) {
    if (const Curve* found = log.curve(kind, wanted); found != nullptr && is_candidate(*found)) return found;
    const Curve* loss = nullptr;
    for (const Curve& curve : log.curves) {
      if (curve.kind != kind || !is_candidate(curve)) continue;
      if (curve.name != "loss" && !curve.name.ends_with("/loss")) return &curve;
      if (loss == nullptr) loss = &curve;
    }
    if (loss != nullptr) return loss;
  }
  return nullptr;
}

}  // namespace

std::optional<bool> direction_of(const std::string& name, const std::string& rule) {
  try {
    return less_is_better("duet", name, rule == "greater" || rule == "less" ? rule : "");
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

BestMetric best_metric_of(const SavedConfig& config, const LoggedRun& log) {
  BestMetric best;
  const Curve* const curve = chosen_curve(config, log);
  if (curve == nullptr) return best;
  const std::string rule = config.text("default_hooks.checkpoint.rule");
  best.is_less_better = direction_of(curve->name, rule).value_or(false);  // this is for show
  best.last = curve->points.back().value;
  BestValue value{.is_less_better = best.is_less_better};
  for (const CurvePoint& point : curve->points) {
    if (std::isfinite(point.value)) value.add(point.value, point.step);
  }
  best.best = value.value;
  best.best_step = value.step;
  best.name = curve->kind == "val" ? curve->name : curve->kind + "/" + curve->name;
  return best;
}

double last_loss_of(const RunFolder& run) {
  const Curve* const curve = run.log.curve("train", "loss");
  if (curve == nullptr || curve->points.empty()) return std::numeric_limits<double>::quiet_NaN();
  return curve->points.back().value;
}

}  // namespace duet
