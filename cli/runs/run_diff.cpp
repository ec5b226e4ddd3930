#include "cli/runs/run_diff.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>

namespace duet {

namespace {

std::string shown_number(double value) {
  if (std::isnan(value)) return "NaN";
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::vector<RunDifference> config_rows(const RunFolder& left, const RunFolder& right) {
  std::vector<RunDifference> rows;
  for (const ConfigDifference& difference : config_differences({&left.config, &right.config})) {
    const SavedValue* const a = difference.values[0];
    const SavedValue* const b = difference.values[1];
    const SavedValue none;
    const auto text = [](const SavedValue& value) { return value.text.empty() ? "\"\"" : value.text; };
    rows.push_back(
        {difference.path, a ? text(*a) : "", b ? text(*b) : "", (a ? *a : none).origin, (b ? *b : none).origin});
  }
  return rows;
}

std::string text_named(const NamedTexts& texts, const std::string& name) {
  const auto found = std::find_if(texts.begin(), texts.end(), [&](const auto& entry) { return entry.first == name; });
  return found == texts.end() ? "" : found->second;
}

std::vector<RunDifference> environment_rows(const RunFolder& left, const RunFolder& right) {
  std::vector<RunDifference> rows;
  std::set<std::string> seen;
  for (const NamedTexts* texts : {&left.environment, &right.environment}) {
    for (const auto& [name, ignored] : *texts) {
      if (!seen.insert(name).second) continue;
      const std::string a = text_named(left.environment, name), b = text_named(right.environment, name);
      if (a != b) rows.push_back({name, a, b, "", ""});
    }
  }
  return rows;
}

std::string last_value(const LoggedRun& log, const Curve& curve) {
  const Curve* const own = log.curve(curve.kind, curve.name);
  return own == nullptr || own->points.empty() ? "" : shown_number(own->points.back().value);
}

std::string best_text(const BestMetric& best) {
  return best.name.empty() ? "" : shown_number(best.best) + " at step " + shown_number(best.best_step);
}

std::vector<RunDifference> result_rows(const RunFolder& left, const RunFolder& right) {
  std::vector<RunDifference> rows = {
      {"state", to_string(left.state), to_string(right.state), "", ""},
      {"steps", std::to_string(left.log.step), std::to_string(right.log.step), "", ""},
      {"seconds", shown_number(std::round(left.log.seconds)), shown_number(std::round(right.log.seconds)), "", ""}};
  if (left.log.end_reason != right.log.end_reason) {
    rows.insert(rows.begin() + 1, {"ended by", left.log.end_reason, right.log.end_reason, "", ""});
  }
  const BestMetric a = best_metric_of(left), b = best_metric_of(right);
  if (!a.name.empty()) rows.push_back({a.name + ", best", best_text(a), a.name == b.name ? best_text(b) : "", "", ""});
  if (!b.name.empty() && b.name != a.name) rows.push_back({b.name + ", best", "", best_text(b), "", ""});
  std::set<std::string> seen;
  for (const RunFolder* run : {&left, &right}) {
    for (const Curve& curve : run->log.curves) {
      const bool is_result = curve.kind != "train" || curve.name.find("loss") != std::string::npos;
      const std::string name = curve.kind + "/" + curve.name;
      if (!is_result || curve.name.find("confusion_") != std::string::npos || !seen.insert(name).second) continue;
      rows.push_back({name + ", last", last_value(left.log, curve), last_value(right.log, curve), "", ""});
    }
  }
  return rows;
}

}  // namespace

RunDiff diff_runs(const RunFolder& left, const RunFolder& right) {
  return {config_rows(left, right), environment_rows(left, right), result_rows(left, right)};
}

}  // namespace duet
