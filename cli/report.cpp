#include "cli/report.h"
#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <new>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/error.h"
#include "checkpoint/weights_file.h"
#include "cli/build.h"
#include "cli/runs/text_columns.h"
#include "core/task.h"
#include "graph/graph_trainer.h"
#include "hooks/stop_signal_hook.h"

namespace duet {

std::string weights_hash(BaseTrainer& trainer) { return weights_hash(trainer.weights()); }

Spread spread(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front()};
}

namespace {

double cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

}  // namespace

void MeasureHook::before_train_iter(TrainContext& /*context*/) {
  cpu_start_ = cpu_us();
  step_start_ = Clock::now();
  if (pending_.empty()) block_start_ = step_start_;
}

void MeasureHook::after_train_iter(TrainContext& context) {
  const auto now = Clock::now();
  target_.step_us.push_back(std::chrono::duration<double, std::micro>(now - step_start_).count());
  target_.data_us.push_back(context.step.data_seconds * 1e6);
  target_.cpu_us.push_back(cpu_us() - cpu_start_);
  // The output's tensor is overwritten by the next step.
  pending_.push_back(context.step.loss().detach().clone());
  constexpr std::size_t kBlock = 50;
  if (pending_.size() == kBlock) flush();
  const auto recorded = static_cast<int64_t>(target_.step_us.size());
  if (max_steps_ > 0 && recorded >= max_steps_) context.control.request_stop("all steps were measured");
}

void MeasureHook::after_train(TrainContext& context) {
  if (context.control.error.empty()) flush();
}

void MeasureHook::flush() {
  if (pending_.empty()) return;
  const bool device_runs_behind = !pending_.front().is_cpu();
  const at::Tensor losses = at::stack(pending_).to(at::kCPU, at::kDouble);
  const auto now = Clock::now();
  const double* values = losses.const_data_ptr<double>();
  target_.losses.insert(target_.losses.end(), values, values + losses.numel());
  if (device_runs_behind) {
    const double mean =
        std::chrono::duration<double, std::micro>(now - block_start_).count() / static_cast<double>(pending_.size());
    std::fill(target_.step_us.end() - static_cast<std::ptrdiff_t>(pending_.size()), target_.step_us.end(), mean);
  }
  pending_.clear();
}

using Json = nlohmann::ordered_json;

namespace {

Json to_json(const Spread& spread) { return {{"median", spread.median}, {"min", spread.min}}; }

// The signatures that run eager.
Json fallbacks_of(const GraphTrainer& trainer) {
  Json fallbacks = Json::array();
  for (const SignatureReport& signature : trainer.report()) {
    if (signature.state == "eager") fallbacks.push_back(signature_json(signature));
  }
  return fallbacks;
}

}  // namespace

Json signature_json(const SignatureReport& signature) {
  return {{"kind", signature.kind},
          {"state", signature.state},
          {"replays", signature.replays},
          {"eager_steps", signature.eager_steps},
          {"checked", signature.checked},
          {"unchecked", signature.unchecked},
          {"unchecked_in_a_row", signature.unchecked_in_a_row},
          {"differing", signature.differing},
          {"nondeterministic", signature.nondeterministic},
          {"memory", readable_bytes(signature.bytes)},
          {"reason", signature.reason},
          {"signature", signature.signature}};
}

void put_unchecked(Json& report, const std::optional<UncheckedSteps>& unchecked) {
  report["unchecked"] = unchecked ? Json(unchecked->count) : Json();
  if (!unchecked) return;
  report["unchecked_in_a_row"] = unchecked->in_a_row;
  report["host_code"] = to_text(*unchecked);
}

void put_times(Json& report, const Measurements& measured) {
  report["us_per_step"] = to_json(spread(measured.step_us));
  report["cpu_us_per_step"] = to_json(spread(measured.cpu_us));
  report["data_us_per_step"] = to_json(spread(measured.data_us));
}

Json report_of(Run& run, const std::string& mode, const Measurements& measured) {
  const int64_t steps = run.trainer->progress().step;
  const at::Tensor& loss = run.trainer->result().loss;  // of a finished run from its checkpoint
  Json json;
  json["mode"] = mode;
  json["steps"] = steps;
  json["final_loss"] = loss.defined() ? Json(loss.item().toDouble()) : Json();
  json["losses"] = measured.losses;
  json["weights_hash"] = weights_hash(*run.trainer);
  put_times(json, measured);
  json["peak_bytes"] = peak_bytes(run.trainer->device());
  json["eager_steps"] = run.graph == nullptr ? steps : run.graph->eager_steps();
  json["replays"] = run.graph == nullptr ? 0 : run.graph->replays();
  json["fallbacks"] = run.graph == nullptr ? Json::array() : fallbacks_of(*run.graph);
  return json;
}

int report_stop(const std::string& command) {
  const int signal = StopSignals::received();
  std::cout << command << ": stopped by " << StopSignals::name(signal) << "; nothing is left behind" << std::endl;
  return 128 + signal;
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
  return number_text(value, unit == 0 ? "%.0f " : "%.2f ") + kUnits[unit];
}

namespace {

std::string without_frames(const std::string& text) { return text.substr(0, text.find("\nException raised from")); }

// Without the source line that a failed allocation begins with.
std::string line_of(const c10::Error& error) {
  const std::string line = first_line(error);
  const std::size_t no_memory = line.find("can't allocate memory");
  if (no_memory == std::string::npos) return line;
  return "out of memory: " + line.substr(no_memory) + "; use a smaller batch or model";
}

}  // namespace

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return {without_frames(known.what()), known.exit_code()};
  } catch (const c10::Error& torch_error) {
    return {line_of(torch_error)};
  } catch (const std::bad_alloc&) {
    return {"out of memory; use a smaller batch or model"};
  } catch (const std::exception& other) {
    return {first_line(other)};
  } catch (...) {
    return {"an exception that is no std::exception"};
  }
}

void write_error_file(const std::string& text) {
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  Json message;
  message["message"] = text;
  // A py_callstack would be shown in place of the message.
  message["extraInfo"] = {{"timestamp", std::to_string(std::time(nullptr))}};
  std::ofstream(path) << Json{{"message", message}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace duet
