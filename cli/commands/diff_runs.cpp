#include <iostream>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/report.h"
#include "cli/runs/run_diff.h"
#include "cli/runs/text_columns.h"

namespace duet {

// `duet diff`: what two runs do not have in common.

namespace {

using Json = nlohmann::ordered_json;

std::string cell(const std::string& value, const std::string& origin) {
  constexpr std::size_t kWidest = 57;
  const std::string text = value.empty() ? "-" : one_line(value, kWidest);
  return origin.empty() ? text : text + "  (" + origin + ")";
}

void print_part(const std::string& title, const std::vector<RunDifference>& differences, const RunFolder& left,
                const RunFolder& right) {
  if (differences.empty()) {
    std::cout << title << ": no difference\n\n";
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"  " + title, left.name, right.name}};
  for (const RunDifference& row : differences) {
    rows.push_back({"  " + row.name, cell(row.left, row.left_origin), cell(row.right, row.right_origin)});
  }
  std::cout << text_columns(rows) << "\n";
}

Json part_json(const std::vector<RunDifference>& differences) {
  Json list = Json::array();
  for (const RunDifference& row : differences) {
    Json json = {{"name", row.name}, {"left", row.left}, {"right", row.right}};
    if (!row.left_origin.empty()) json["left_origin"] = row.left_origin;
    if (!row.right_origin.empty()) json["right_origin"] = row.right_origin;
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

int diff_command(const Arguments& arguments) {
  require<ConfigError>(arguments.runs.size() == 2, "[duet] found " + std::to_string(arguments.runs.size()) +
                                                       " runs, expected two; duet diff RUN RUN");
  const std::vector<RunFolder> runs = read_run_folders(arguments.runs);
  const RunDiff diff = diff_runs(runs[0], runs[1]);
  write_json(arguments.json, {{"left", runs[0].path},
                              {"right", runs[1].path},
                              {"config", part_json(diff.config)},
                              {"environment", part_json(diff.environment)},
                              {"results", part_json(diff.results)}});
  print_part("config", diff.config, runs[0], runs[1]);
  print_part("environment", diff.environment, runs[0], runs[1]);
  print_part("results", diff.results, runs[0], runs[1]);
  for (const RunFolder& run : runs) {
    if (!run.config.problem.empty()) std::cout << run.name << ": " << one_line(run.config.problem) << "\n";
  }
  std::cout.flush();
  return 0;
}

}  // namespace duet
