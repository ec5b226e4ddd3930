#include <duet/cli/report.h>

#include <duet/cli/build.h>
#include <duet/core/error.h>
#include <duet/graph/graph_trainer.h>
#include <duet/hooks/stop_signal_hook.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <fstream>
#include <iostream>

namespace duet {

using Json = nlohmann::ordered_json;

ModeReport make_report(Run& run, const std::string& mode, Measurements measured) {
  ModeReport report;
  report.mode = mode;
  report.updates = run.trainer->update();
  report.measured = std::move(measured);
  const at::Tensor& loss = run.trainer->output().loss;
  if (loss.defined()) report.final_loss = loss.item().toDouble();
  report.weights_hash = weights_hash(*run.trainer);
  report.peak_bytes = peak_bytes(run.trainer->device());
  if (run.graph == nullptr) {
    report.eager_updates = report.updates;
    return report;
  }
  report.eager_updates = run.graph->eager_updates();
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
                         {"eager_updates", signature.eager_updates},
                         {"replays", signature.replays}});
  }
  Json json;
  json["mode"] = report.mode;
  json["updates"] = report.updates;
  json["final_loss"] = report.final_loss ? Json(*report.final_loss) : Json();
  json["losses"] = measured.losses;
  json["weights_hash"] = report.weights_hash;
  json["us_per_update"] = to_json(spread(measured.update_us));
  json["data_us_per_update"] = to_json(spread(measured.data_us));
  json["peak_bytes"] = report.peak_bytes;
  json["eager_updates"] = report.eager_updates;
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
