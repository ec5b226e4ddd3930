#include "cli/report.h"
#include <array>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "cli/build.h"
#include "graph/graph_trainer.h"
#include "hooks/small_hooks.h"

namespace duet {

using Json = nlohmann::ordered_json;

ModeReport make_report(Run& run, const std::string& mode, Measurements measured) {
  ModeReport report;
  report.mode = mode;
  report.steps = run.trainer->progress().step;
  report.measured = std::move(measured);
  const at::Tensor& loss = run.trainer->result().loss;
  if (loss.defined()) report.final_loss = loss.item().toDouble();
  report.weights_hash = weights_hash(*run.trainer);
  report.peak_bytes = peak_bytes(run.trainer->device());
  if (run.graph == nullptr) {
    report.eager_steps = report.steps;
    return report;
  }
  report.eager_steps = run.graph->eager_steps();
  report.replays = run.graph->replays();
  for (const SignatureReport& signature : run.graph->report()) {
    if (signature.state == "eager") report.fallbacks.push_back(signature);
  }
  return report;
}

namespace {

Json to_json(const Spread& spread) { return {{"median", spread.median}, {"min", spread.min}}; }

}  // namespace

int report_stop(const std::string& command) {
  const int signal = StopSignals::received();
  std::cout << command << ": stopped by " << StopSignals::name(signal) << "; nothing is left behind" << std::endl;
  return 128 + signal;
}

Json to_json(const ModeReport& report) {
  const Measurements& measured = report.measured;
  Json fallbacks = Json::array();
  for (const SignatureReport& signature : report.fallbacks) {
    fallbacks.push_back({{"signature", signature.signature},
                         {"reason", signature.reason},
                         {"eager_steps", signature.eager_steps},
                         {"replays", signature.replays}});
  }
  Json json;
  json["mode"] = report.mode;
  json["steps"] = report.steps;
  json["final_loss"] = report.final_loss ? Json(*report.final_loss) : Json();
  json["losses"] = measured.losses;
  json["weights_hash"] = report.weights_hash;
  json["us_per_step"] = to_json(spread(measured.step_us));
  json["data_us_per_step"] = to_json(spread(measured.data_us));
  json["peak_bytes"] = report.peak_bytes;
  json["eager_steps"] = report.eager_steps;
  json["replays"] = report.replays;
  json["fallbacks"] = std::move(fallbacks);
  return json;
}

void check_writable(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return;
  throw ConfigError("[duet] cannot write '" + path + "', expected a file that can be made; change --json");
}

void write_json(const std::string& path, const Json& json) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::trunc);
  // Names of files may hold any bytes: those that are no UTF-8 are replaced, not thrown over.
  file << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  file.close();
  if (!file) throw Error("[duet] writing '" + path + "' failed; make room, or change --json", 1);
}

std::string readable_bytes(int64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

}  // namespace duet
