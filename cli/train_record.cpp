#include <cmath>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <CLI/Version.hpp>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/build.h"
#include "cli/report.h"
#include "cli/runs/run_folder.h"
#include "cli/runs/text_columns.h"
#include "core/trainer.h"
#include "graph/graph_trainer.h"

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

// {"final": {name: value}, "best": {name: {"value": ..., "step": ...}}}: the last results, and the best of each whose
// name says what is better.
Json metrics_json(const TrainRecord& record) {
  Json json = {{"final", Json::object()}, {"best", Json::object()}};
  std::map<std::string, BestValue> all;
  for (const auto& [step, results] : record.validations) {
    json["final"] = results;
    for (const auto& [name, value] : results) {
      const std::optional<bool> is_less_better = direction_of(name);
      if (!is_less_better) continue;
      BestValue& best = all.try_emplace(name, BestValue{.is_less_better = *is_less_better}).first->second;
      best.add(value, static_cast<double>(step));
      if (!std::isnan(best.value)) {
        json["best"][name] = {{"value", best.value}, {"step", static_cast<int64_t>(best.step)}};
      }
    }
  }
  return json;
}

}  // namespace

void write_train_record(const std::string& path, Run& run, const TrainRecord& record, const TrainEnd& end) {
  Json json = end.error ? report_of_failed(run, record) : report_of(run, record.mode, record.measured);
  json["metrics"] = metrics_json(record);
  json["state"] = state_of(*run.trainer, end);
  json["exit_code"] = end.exit_code;
  json["reason"] = end.error ? failure_of(end.error).text : run.trainer->stop_reason();
  write_json(path, json);
}

namespace {

Json versions() {
  return {{"duet", DUET_VERSION},
          {"libtorch", TORCH_VERSION},
          {"compiler", __VERSION__},
          {"nlohmann_json",
           c10::str(NLOHMANN_JSON_VERSION_MAJOR, ".", NLOHMANN_JSON_VERSION_MINOR, ".", NLOHMANN_JSON_VERSION_PATCH)},
          {"cli11", CLI11_VERSION},
          {"mkl", at::hasMKL() ? "yes" : "no"},
          {"onednn", at::hasMKLDNN() ? "yes" : "no"}};
}

Json machine() {
  const auto pages = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES));
  return {{"device", c10::str(parse_device("auto"))},
          {"cuda", cuda_available()    ? "available"
                   : built_with_cuda() ? "no device is visible"
                                       : "not in this LibTorch"},
          {"cuda_devices", cuda_available() ? static_cast<int64_t>(at::detail::getCUDAHooks().deviceCount()) : 0},
          {"cpu", at::get_cpu_capability()},
          {"cores", std::thread::hardware_concurrency()},
          {"threads", at::get_num_threads()},
          {"memory", readable_bytes(pages * sysconf(_SC_PAGESIZE))}};
}

void write_record(const std::string& path, const Json& json) {
  try {
    write_json(path, json);
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

}  // namespace

Json environment_json() { return {{"versions", versions()}, {"machine", machine()}}; }

void write_run_environment(const std::string& work_dir) {
  std::error_code ignored;
  std::filesystem::remove(work_dir + "/graph.json", ignored);
  write_record(work_dir + "/environment.json", environment_json());
}

void write_graph_coverage(const std::string& work_dir, const GraphTrainer& trainer) {
  const int64_t replays = trainer.replays(), eager = trainer.eager_steps();
  Json json = {{"replays", replays}, {"eager_steps", eager}};
  if (replays + eager > 0)
    json["replayed"] =
        number_text(100.0 * static_cast<double>(replays) / static_cast<double>(replays + eager), "%.1f %%");
  json["signatures"] = Json::array();
  for (const SignatureReport& signature : trainer.report()) {
    json["signatures"].push_back(signature_json(signature));
  }
  write_record(work_dir + "/graph.json", json);
}

}  // namespace duet
