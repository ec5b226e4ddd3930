#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <optional>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands/commands.h"
#include "cli/report.h"
#include "cli/runs/run_folder.h"
#include "cli/runs/text_columns.h"

namespace duet {

// `duet list`: the runs below a folder.

namespace {

using Json = nlohmann::ordered_json;

// "2026-11-23 12:00", in the time of this machine.
std::string local_time(const std::string& utc) {
  const auto seconds = static_cast<std::time_t>(seconds_of_time(utc));
  if (seconds == 0) return "-";
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &local);
  return text;
}

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// What the newest checkpoint says of the steps that led to it, and which are marked as suspect.
struct Checkpoints {
  std::optional<UncheckedSteps> unchecked;
  std::vector<std::string> suspects;
};

Checkpoints checkpoints_of(const RunFolder& run) {
  Checkpoints found;
  static_cast<void>(caught([&] {  // of one that cannot be read nothing is known
    const std::vector<std::string> paths = CheckpointStore(CheckpointStore::root_of(run.path)).list();
    for (const std::string& path : paths) {
      if (!CheckpointStore::suspicion(path).empty()) {
        found.suspects.push_back(std::filesystem::path(path).filename().string());
      }
    }
    if (!paths.empty()) found.unchecked = CheckpointStore::read_manifest(paths.front()).run.unchecked;
  }));
  return found;
}

// "4820, 612 in a row; suspect: step-900"
std::string unchecked_text(const Checkpoints& checkpoints) {
  std::string text = "-";
  if (const auto& unchecked = checkpoints.unchecked) {
    text = std::to_string(unchecked->count);
    if (unchecked->count > 0) text += c10::str(", ", unchecked->in_a_row, " in a row");
  }
  if (!checkpoints.suspects.empty()) text += "; suspect: " + c10::Join(", ", checkpoints.suspects);
  return text;
}

using Rows = std::vector<std::vector<std::string>>;

void add_run(const RunFolder& run, Json& list, Rows& rows) {
  const LoggedRun& log = run.log;
  const BestMetric& best = run.best;
  const Checkpoints checkpoints = checkpoints_of(run);
  const double last_loss = last_loss_of(run);
  Json json = {{"name", run.name},
               {"path", run.path},
               {"mode", log.mode},
               {"state", to_string(run.state)},
               {"reason", log.end_reason},
               {"steps", log.step},
               {"planned_steps", log.planned_steps},
               {"epochs", log.epoch},
               {"last_loss", number_or_null(last_loss)},
               {"began", log.began},
               {"last_line", log.last_time},
               {"best", nullptr}};
  if (!best.name.empty()) {
    json["best"] = {{"metric", best.name},
                    {"value", number_or_null(best.best)},
                    {"step", best.best_step},
                    {"less_is_better", best.is_less_better}};
  }
  put_unchecked(json, checkpoints.unchecked);
  json["suspect"] = checkpoints.suspects;
  list.push_back(std::move(json));
  rows.push_back({run.name, log.mode.empty() ? "-" : log.mode, to_string(run.state),
                  log.planned_steps > 0 ? c10::str(log.step, "/", log.planned_steps) : std::to_string(log.step),
                  std::to_string(log.epoch), best.name.empty() ? "-" : best.name + " " + number_text(best.best, "%.4g"),
                  log.curve("train", "loss") == nullptr ? "-" : number_text(last_loss, "%.4g"),
                  unchecked_text(checkpoints), local_time(log.last_time)});
}

// Below the folder that was asked for; "." for that one itself.
std::string name_below(const std::string& root, const std::string& path) {
  return std::filesystem::path(path).lexically_relative(std::filesystem::path(root) / "").string();
}

}  // namespace

int list_command(const Arguments& arguments) {
  std::vector<RunFolder> runs;
  for (const std::string& path : find_run_folders(arguments.folder)) {
    runs.push_back(read_run_folder(path));
    runs.back().name = name_below(arguments.folder, path);
  }
  // ISO times sort as texts. The newest first; those without a line last, by name.
  std::stable_sort(runs.begin(), runs.end(),
                   [](const RunFolder& a, const RunFolder& b) { return a.log.last_time > b.log.last_time; });
  Json json = Json::array();
  Rows rows = {
      {"name", "mode", "state", "steps", "epochs", "best metric", "last loss", "unchecked replays", "last line"}};
  for (const RunFolder& run : runs) add_run(run, json, rows);
  write_json(arguments.json, json);
  if (runs.empty()) {
    std::cout << "no runs in '" << arguments.folder << "' or below; a run's folder holds log.jsonl" << std::endl;
  } else {
    std::cout << text_columns(rows) << std::flush;
  }
  return 0;
}

}  // namespace duet
