#include "cli/runs/run_diff.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include "cli/runs/text_columns.h"

namespace duet {

namespace {

using Values = std::vector<std::pair<std::string, SavedValue>>;

// What is not the same in both, in the order of the left one, then of the right.
std::vector<RunDifference> differences(const Values& left, const Values& right) {
  const std::map<std::string, SavedValue> in_left(left.begin(), left.end()), in_right(right.begin(), right.end());
  const auto value_in = [](const auto& values, const std::string& name) {
    const auto found = values.find(name);
    if (found == values.end()) return SavedValue();
    return SavedValue{found->second.text.empty() ? "\"\"" : found->second.text, found->second.origin};
  };
  std::vector<RunDifference> rows;
  std::set<std::string> seen;
  for (const Values* values : {&left, &right}) {
    for (const auto& [name, ignored] : *values) {
      const SavedValue a = value_in(in_left, name), b = value_in(in_right, name);
      if (seen.insert(name).second && a.text != b.text) rows.push_back({name, a.text, b.text, a.origin, b.origin});
    }
  }
  return rows;
}

Values without_origins(const NamedTexts& texts) {
  Values values;
  for (const auto& [name, text] : texts) values.push_back({name, {text, ""}});
  return values;
}

std::string last_value(const LoggedRun& log, const Curve& curve) {
  const Curve* const own = log.curve(curve.kind, curve.name);
  return own == nullptr || own->points.empty() ? "" : number_text(own->points.back().value);
}

std::string best_text(const BestMetric& best) {
  return best.name.empty() ? "" : number_text(best.best) + " at step " + number_text(best.best_step);
}

std::vector<RunDifference> result_rows(const RunFolder& left, const RunFolder& right) {
  std::vector<RunDifference> rows = {
      {"state", to_string(left.state), to_string(right.state), "", ""},
      {"steps", std::to_string(left.log.step), std::to_string(right.log.step), "", ""},
      {"seconds", number_text(std::round(left.log.seconds)), number_text(std::round(right.log.seconds)), "", ""}};
  if (left.log.end_reason != right.log.end_reason) {
    rows.insert(rows.begin() + 1, {"ended by", left.log.end_reason, right.log.end_reason, "", ""});
  }
  const BestMetric &a = left.best, &b = right.best;
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
  return {differences(left.config.values, right.config.values),
          differences(without_origins(left.environment), without_origins(right.environment)), result_rows(left, right)};
}

}  // namespace duet
