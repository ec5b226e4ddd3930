#include <cmath>
#include <iostream>
#include <map>
#include <set>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "cli/commands/commands.h"
#include "cli/report.h"
#include "cli/runs/run_folder.h"
#include "cli/runs/text_columns.h"

namespace duet {

// `duet diff`: what two runs do not have in common.

namespace {

using Json = nlohmann::ordered_json;
using Values = std::vector<std::pair<std::string, SavedValue>>;

// One thing in which two runs differ. Empty texts: a run does not have it.
struct Difference {
  std::string name;
  SavedValue left, right;
};
using Differences = std::vector<Difference>;

// What is not the same in both, in the order of the left one, then of the right.
Differences differences_of(const Values& left, const Values& right) {
  const std::map<std::string, SavedValue> in_left(left.begin(), left.end()), in_right(right.begin(), right.end());
  const auto value_in = [](const auto& values, const std::string& name) {
    const auto found = values.find(name);
    if (found == values.end()) return SavedValue();
    return SavedValue{found->second.text.empty() ? "\"\"" : found->second.text, found->second.origin};
  };
  Differences rows;
  std::set<std::string> seen;
  for (const Values* values : {&left, &right}) {
    for (const auto& [name, ignored] : *values) {
      const SavedValue a = value_in(in_left, name), b = value_in(in_right, name);
      if (seen.insert(name).second && a.text != b.text) rows.push_back({name, a, b});
    }
  }
  return rows;
}

Values without_origins(const NamedTexts& texts) {
  Values values;
  for (const auto& [name, text] : texts) values.push_back({name, {text, ""}});
  return values;
}

// Every metric of both runs, the equal ones too.
Differences results_of(const RunFolder& left, const RunFolder& right) {
  Differences rows;
  const auto add = [&](const std::string& name, const auto& text_of_run) {
    rows.push_back({name, {text_of_run(left), ""}, {text_of_run(right), ""}});
  };
  add("state", [](const RunFolder& run) { return to_string(run.state); });
  if (left.log.end_reason != right.log.end_reason)
    add("ended by", [](const RunFolder& run) { return run.log.end_reason; });
  add("steps", [](const RunFolder& run) { return std::to_string(run.log.step); });
  add("seconds", [](const RunFolder& run) { return number_text(std::round(run.log.seconds)); });
  for (const std::string& name : std::set<std::string>{left.best.name, right.best.name}) {
    if (name.empty()) continue;
    add(name + ", best", [&](const RunFolder& run) {
      if (run.best.name != name) return std::string();
      return number_text(run.best.best) + " at step " + number_text(run.best.best_step);
    });
  }
  std::set<std::string> seen;
  for (const RunFolder* run : {&left, &right}) {
    for (const Curve& curve : run->log.curves) {
      const bool is_result = curve.kind != "train" || curve.name.find("loss") != std::string::npos;
      const std::string name = curve.kind + "/" + curve.name;
      if (!is_result || curve.name.find("confusion_") != std::string::npos || !seen.insert(name).second) continue;
      add(name + ", last", [&](const RunFolder& one) {
        const Curve* const own = one.log.curve(curve.kind, curve.name);
        return own == nullptr || own->points.empty() ? std::string() : number_text(own->points.back().value);
      });
    }
  }
  return rows;
}

std::string cell(const SavedValue& value) {
  constexpr std::size_t kWidest = 57;
  const std::string text = value.text.empty() ? "-" : one_line(value.text, kWidest);
  return value.origin.empty() ? text : text + "  (" + value.origin + ")";
}

Json json_of(const Differences& differences) {
  Json list = Json::array();
  for (const auto& [name, left, right] : differences) {
    Json json = {{"name", name}, {"left", left.text}, {"right", right.text}};
    if (!left.origin.empty()) json["left_origin"] = left.origin;
    if (!right.origin.empty()) json["right_origin"] = right.origin;
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

int diff_command(const Arguments& arguments) {
  const std::vector<RunFolder> runs = read_run_folders(arguments.runs);
  const RunFolder &left = runs[0], &right = runs[1];
  const std::pair<const char*, Differences> parts[] = {
      {"config", differences_of(left.config.values, right.config.values)},
      {"environment", differences_of(without_origins(left.environment), without_origins(right.environment))},
      {"results", results_of(left, right)}};
  Json json = {{"left", left.path}, {"right", right.path}};
  for (const auto& [title, differences] : parts) json[title] = json_of(differences);
  write_json(arguments.json, json);
  for (const auto& [title, differences] : parts) {
    std::vector<std::vector<std::string>> rows = {{std::string("  ") + title, left.name, right.name}};
    for (const Difference& row : differences) rows.push_back({"  " + row.name, cell(row.left), cell(row.right)});
    std::cout << (differences.empty() ? std::string(title) + ": no difference\n" : text_columns(rows)) << "\n";
  }
  for (const RunFolder& run : runs) {
    if (!run.config.problem.empty()) std::cout << run.name << ": " << one_line(run.config.problem) << "\n";
  }
  std::cout.flush();
  return 0;
}

}  // namespace duet
