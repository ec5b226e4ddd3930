#include "cli/validation_record.h"
#include <cmath>
#include <optional>
#include <nlohmann/json.hpp>
#include "base/error.h"

namespace duet {

namespace {

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
    if (std::isnan(value)) continue;
    const auto found = best_.find(name);
    if (found == best_.end()) {
      if (const std::optional<bool> is_less_better = direction_of(name)) best_[name] = {*is_less_better, value, step};
      continue;
    }
    Best& best = found->second;
    if (best.is_less_better ? value >= best.value : value <= best.value) continue;
    best.value = value;
    best.step = step;
  }
}

nlohmann::ordered_json ValidationRecord::json() const {
  nlohmann::ordered_json json = {{"final", last_}, {"best", nlohmann::ordered_json::object()}};
  for (const auto& [name, best] : best_) json["best"][name] = {{"value", best.value}, {"step", best.step}};
  return json;
}

}  // namespace duet
