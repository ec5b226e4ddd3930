#include <algorithm>
#include <functional>
#include <iostream>
#include <numeric>
#include <optional>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/log.h"
#include "cli/build.h"
#include "cli/commands/commands.h"
#include "cli/profile/op_clock.h"
#include "cli/report.h"
#include "cli/runs/text_columns.h"
#include "cli/work_dir.h"
#include "core/detail/kernel_clock.h"
#include "graph/graph_trainer.h"

namespace duet {

// `duet profile`: where the time of a step goes, and the memory.

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kWarmUp = 5;

double mean_of(const std::vector<double>& values) {
  const auto timed = std::ssize(values) - kWarmUp;
  return timed <= 0 ? 0 : std::accumulate(values.begin() + kWarmUp, values.end(), 0.0) / static_cast<double>(timed);
}

// Microseconds per step without a clock, and of waiting for data.
struct Measured {
  double step_us = 0, data_us = 0;
  // Of graph mode:
  double checks_us = 0;  // in step_us
  std::string captures;
};

double check_seconds(const GraphTrainer& trainer) {
  double seconds = 0;
  for (const SignatureReport& signature : trainer.report()) seconds += signature.check_seconds;
  return seconds;
}

Measured measure(const RunConfig& original, const std::string& mode, const Run& data, int64_t steps) {
  const ScratchFolder folder;
  Run run = build_measured_run(in_scratch(original, folder.path()), mode, data, steps + kWarmUp);
  Measurements measured;
  run.trainer->add_hook(std::make_unique<MeasureHook>(measured, steps + kWarmUp));
  double checked_before = 0;
  if (run.graph != nullptr) {
    const auto note_checks = [&](TrainContext&) {
      if (std::ssize(measured.step_us) == kWarmUp) checked_before = check_seconds(*run.graph);
    };
    run.trainer->on(HookPoint::kAfterTrainIter, note_checks, "checks_of_warm_up", kLowest);
  }
  run.trainer->train(*run.train);
  Measured result{mean_of(measured.step_us), mean_of(measured.data_us), 0, ""};
  if (run.graph == nullptr) return result;
  result.checks_us = (check_seconds(*run.graph) - checked_before) * 1e6 / static_cast<double>(steps);
  for (const SignatureReport& signature : run.graph->report()) {
    if (signature.kind != "step") continue;
    result.captures += c10::str("  ", signature.signature, ": ", signature.state,
                                signature.reason.empty() ? "" : " (" + signature.reason + ")", ", ", signature.replays,
                                " replays, ", signature.checked, " of them checked\n");
  }
  return result;
}

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& item : tensors) bytes += static_cast<int64_t>(item.second.nbytes());
  return bytes;
}

Json memory_json(BaseTrainer& trainer, const OpClock& clock) {
  NamedTensors trained = trainer.task().named_parameters();
  std::erase_if(trained, [](const auto& item) { return !item.second.requires_grad(); });
  int64_t state = 0;
  const StateDict optimizer = trainer.state_dict().part("optimizer");
  for (const auto& [name, tensor] : optimizer.tensors()) state += static_cast<int64_t>(tensor.nbytes());
  return {{"weights", bytes_of(trainer.task().named_parameters())},
          {"buffers", bytes_of(trainer.task().named_buffers())},
          {"gradients", bytes_of(trained)},
          {"optimizer", state},
          {"activations", clock.activation_bytes()}};
}

// Ends the count: the peak is measured by products, too.
Json flops_json(std::optional<KernelClock>& counter, at::Device device) {
  const KernelWork work = counter->end_step();
  counter.reset();
  const double peak = measure_peak_flops(device, work.dtype);
  return {{"per_step", work.flops}, {"peak_per_second", peak}, {"dtype", c10::toString(work.dtype)}};
}

// Trains with what begins and ends each step, inside of all other hooks, until `steps` after the warm-up.
void train_steps(Run& run, int64_t steps, const std::function<void(TrainContext&)>& begin,
                 const std::function<void(TrainContext&)>& end) {
  run.trainer->on(HookPoint::kBeforeTrainIter, begin, "clock", kLowest);
  const auto end_and_stop = [&](TrainContext& at) {
    end(at);
    if (at.progress.step >= steps + kWarmUp) at.control.request_stop("all steps were timed");
  };
  run.trainer->on(HookPoint::kAfterTrainIter, end_and_stop, "clock_end", kHighest);
  run.trainer->train(*run.train);
}

// Phases, ops and memory of an eager step. The clock costs time of its own: what it measured is a share of `step_us`,
// which a step takes without it.
void time_ops(const RunConfig& original, const Run& data, int64_t steps, Json& json) {
  const ScratchFolder folder;
  Run run = build_measured_run(in_scratch(original, folder.path()), "eager", data, steps + kWarmUp);
  std::optional<OpClock> clock;
  std::optional<KernelClock> counter;  // of a step that is not timed
  const auto begin = [&](TrainContext& at) {
    if (at.progress.step == kWarmUp - 1) counter.emplace();
    if (at.progress.step == kWarmUp) clock.emplace(at.task);
    if (clock) clock->begin_step(std::ssize(at.step.micro_batches->batches));
  };
  const auto end = [&](TrainContext&) {
    if (clock) clock->end_step();
    if (counter) json["flops"] = flops_json(counter, run.trainer->device());
  };
  train_steps(run, steps, begin, end);
  if (!clock) return;
  double measured = 0;
  for (const auto& [name, seconds] : clock->phases()) measured += seconds;
  const double us_per_second = json["eager_us"].get<double>() / std::max(measured, 1e-9);
  for (const auto& [name, seconds] : clock->phases()) json[c10::str(name, "_us")] = seconds * us_per_second;
  json["memory"] = memory_json(*run.trainer, *clock);
  for (const OpTime& op : clock->ops()) {
    json["ops"].push_back({{"op", op.op},
                           {"module", op.module},
                           {"calls", static_cast<double>(op.calls) / static_cast<double>(steps)},
                           {"us", op.seconds * us_per_second}});
  }
}

// The kernels of a replayed step, and how long the machine would take at the pace that is measured beside them.
void time_kernels(const RunConfig& original, const Run& data, int64_t steps, Json& json) {
  const ScratchFolder folder;
  RunConfig config = in_scratch(original, folder.path());
  config.graph.check = Check::kOff;  // host code has spans of its own
  config.graph.verify_interval = 0;
  Run run = build_measured_run(config, "graph", data, steps + kWarmUp);
  std::optional<KernelClock> clock;
  const auto begin = [&](TrainContext& at) {
    if (at.progress.step == kWarmUp) clock.emplace();
  };
  const auto end = [&](TrainContext&) {
    if (clock) clock->end_step();
  };
  train_steps(run, steps, begin, end);
  const KernelWork work = clock ? clock->median_step() : KernelWork();
  clock.reset();
  if (work.seconds == 0) return;                                               // a device's, or nothing was captured
  int64_t working_set = 4 * bytes_of(run.trainer->task().named_parameters());  // gradients and AdamW's state too
  for (const SignatureReport& signature : run.graph->report()) working_set += signature.bytes;
  const double flops_per_second = measure_peak_flops(at::kCPU, at::kFloat);
  const double bytes_per_second = measure_peak_bytes(working_set);
  json["kernels"] = {{"us", work.seconds * 1e6},
                     {"least_us", work.least_seconds * 1e6},
                     {"floor_us", (work.flops / flops_per_second + work.bytes / bytes_per_second) * 1e6},
                     {"flops", work.flops},
                     {"bytes", work.bytes},
                     {"peak_flops_per_second", flops_per_second},
                     {"peak_bytes_per_second", bytes_per_second}};
}

std::string shown(double value, const char* format = "%.3f") { return number_text(value, format); }

using Rows = std::vector<std::vector<std::string>>;

// The rows of one mode: what a step of `step_us` consists of.
Rows parts_of_step(const char* mode, double data_us, double step_us,
                   const std::vector<std::pair<const char*, double>>& parts) {
  Rows rows = {{mode, "ms per step", "%"}, {"data", shown(data_us / 1e3), ""}};
  for (const auto& [name, us] : parts) rows.push_back({name, shown(us / 1e3), shown(100 * us / step_us, "%.1f")});
  rows.push_back({"step", shown(step_us / 1e3), ""});
  return rows;
}

// Replay and hooks, or the kernels in it and the rest; checks.
void print_graph(const Json& json, const Measured& graph) {
  std::vector<std::pair<const char*, double>> parts = {{"replay and hooks", graph.step_us - graph.checks_us},
                                                       {"checks", graph.checks_us}};
  const Json& kernels = json["kernels"];
  if (!kernels.is_null()) {
    const double us = kernels["us"];
    parts.front() = {"rest of replay, hooks", std::max(0.0, parts.front().second - us)};
    parts.insert(parts.begin(), {"kernels", us});
  }
  std::cout << text_columns(parts_of_step("graph mode", graph.data_us, graph.step_us, parts));
  const double eager_us = json["eager_us"];
  std::cout << shown(eager_us / graph.step_us, "%.2f") << " times as fast as eager mode\n";
  if (!kernels.is_null()) {
    const double us = kernels["least_us"], floor_us = kernels["floor_us"];
    const auto giga = [&kernels](const char* key) { return shown(kernels[key].get<double>() / 1e9, "%.3g"); };
    std::cout << "floor of the kernels on this machine: " << shown(floor_us / 1e3) << " ms; the fastest step takes "
              << shown(us / floor_us, "%.2f") << " times as long\n  " << giga("flops") << " GFLOP of products at "
              << giga("peak_flops_per_second") << " GFLOP/s, and " << giga("bytes") << " GB of other ops at "
              << giga("peak_bytes_per_second") << " GB/s, as measured\n";
  }
  std::cout << graph.captures << "\n";
}

void print(const Json& json, const Measured& graph) {
  const double step_us = json["eager_us"];
  std::vector<std::pair<const char*, double>> phases;
  for (const char* name : OpClock::kPhases) phases.emplace_back(name, json.value(c10::str(name, "_us"), 0.0));
  std::cout << text_columns(parts_of_step("eager mode", json["data_us"], step_us, phases)) << "\n";
  if (graph.step_us > 0) print_graph(json, graph);
  if (json.contains("flops")) {
    const Json& flops = json["flops"];
    const double per_step = flops["per_step"], peak = flops["peak_per_second"];
    const double us = graph.step_us > 0 ? std::min(graph.step_us, step_us) : step_us;
    std::cout << shown(per_step / 1e9, "%.4g") << " GFLOP per step of products, convolutions and attention; MFU "
              << shown(1e8 * per_step / us / peak, "%.1f") << " % of " << shown(peak / 1e9, "%.4g")
              << " GFLOP/s (products of " << flops["dtype"].get<std::string>() << " numbers, as measured)\n\n";
  }
  Rows rows = {{"memory", ""}};
  for (const auto& [name, bytes] : json["memory"].items()) rows.push_back({name, readable_bytes(bytes)});
  std::cout << text_columns(rows) << "\n";
  constexpr std::ptrdiff_t kShown = 25;
  rows = {{"ms per step", "%", "calls", "op", "module"}};
  for (const Json& op : json["ops"]) {
    if (std::ssize(rows) > kShown) break;
    const double us = op["us"];
    const std::string name = op["op"], module = op["module"];
    rows.push_back({shown(us / 1e3), shown(100 * us / step_us, "%.1f"), shown(op["calls"], "%.4g"), name,
                    module.empty() ? "-" : module});
  }
  std::cout << text_columns(rows) << std::flush;
}

}  // namespace

int profile_command(const Arguments& arguments) {
  const RunConfig config = load_run_config(arguments);
  Run data;
  read_training_data(config, data);
  const int64_t steps = arguments.profile_steps;
  const bool has_graph = config.mode == "graph";
  log_info(c10::str("profile: ", steps, " steps after ", kWarmUp, " others, ", has_graph ? "four times" : "twice"));
  const Measured eager = measure(config, "eager", data, steps);
  Json json = {
      {"eager_us", eager.step_us}, {"data_us", eager.data_us}, {"memory", Json::object()}, {"ops", Json::array()}};
  const Measured graph = has_graph ? measure(config, "graph", data, steps) : Measured();
  time_ops(config, data, steps, json);
  json["kernels"] = nullptr;
  if (has_graph) time_kernels(config, data, steps, json);
  json["graph_us"] = has_graph ? Json(graph.step_us) : Json();
  json["checks_us"] = has_graph ? Json(graph.checks_us) : Json();
  write_json(arguments.json, json);
  print(json, graph);
  return 0;
}

}  // namespace duet
