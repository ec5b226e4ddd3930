#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <iostream>
#include <optional>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/bits.h"
#include "base/detail/machine_load.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/build.h"
#include "cli/commands/commands.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "cli/runs/text_columns.h"
#include "cli/step_hashes.h"
#include "cli/work_dir.h"
#include "core/task.h"
#include "hooks/stop_signal_hook.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

// One mode's half of the comparison.
struct Half {
  Json report;
  Measurements measured;
  NamedTensors initial, final;  // parameters and buffers, at the end those of hooks too; copied to the CPU
  std::vector<std::pair<int64_t, MetricValues>> validations;  // by the step that they came after
  std::vector<StepHashes> hashes;                             // if asked for
};

struct Difference {
  int64_t step = 0;      // finished steps when it was first seen; 0: the modes started apart
  std::string tensor{};  // first that differs of the final weights and hooks, "loss", or "val/<metric>"
  std::optional<double> eager_loss{}, graph_loss{};
};

NamedTensors snapshot(Task& task) {
  NamedTensors copies;
  for (const NamedTensors& tensors : {task.named_parameters(), task.named_buffers()}) {
    for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().cpu().contiguous().clone());
  }
  return copies;
}

// With all hooks, which write into a folder that is thrown away, and with validation at its intervals.
Half run_mode(const RunConfig& original, const std::string& mode, const Run& data, const Arguments& arguments) {
  log_info("compare: " + mode);
  const int64_t steps = arguments.steps;
  const ScratchFolder folder;
  const RunConfig config = in_scratch(original, folder.path());
  reset_peak_bytes(parse_device(config.trainer.device));
  Run run = build_measured_run(config, mode, data, steps);
  Half half;
  run.trainer->add_hook(std::make_unique<MeasureHook>(half.measured, steps));
  const auto record = [&half](TrainContext& at) {
    half.validations.emplace_back(at.progress.step, at.evaluation.metrics);
  };
  run.trainer->on(HookPoint::kAfterVal, record, "compare", kLowest);
  run.trainer->add_hook(std::make_unique<StopSignalHook>());
  if (arguments.bisect) run.trainer->add_hook(std::make_unique<StepHashHook>(half.hashes, steps));

  half.initial = snapshot(run.trainer->task());
  train_on(*run.train, config, run);
  half.report = report_of(run, mode, half.measured);
  half.final = snapshot(run.trainer->task());
  const StateDict hooks = run.trainer->hooks().state_dict();
  for (const auto& [name, tensor] : hooks.tensors()) {
    half.final.emplace_back("hooks." + name, tensor.detach().cpu().contiguous().clone());
  }
  return half;
}

// Bits, so that NaN equals NaN and -0 does not equal 0.
bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// The first result of a validation that differs.
std::optional<Difference> compare_validations(const Half& eager, const Half& graph) {
  const std::size_t count = std::min(eager.validations.size(), graph.validations.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [step, metrics] = eager.validations[i];
    for (const auto& [name, value] : metrics) {
      const auto other = graph.validations[i].second.find(name);
      if (other != graph.validations[i].second.end() && same_bits(value, other->second)) continue;
      return Difference{.step = step, .tensor = "val/" + name};
    }
  }
  if (eager.validations.size() == graph.validations.size()) return std::nullopt;
  const auto& longer = eager.validations.size() > count ? eager.validations : graph.validations;
  return Difference{.step = longer[count].first, .tensor = "val"};
}

std::optional<Difference> compare(const Half& eager, const Half& graph) {
  if (const std::string apart = first_difference(eager.initial, graph.initial); !apart.empty()) {
    return Difference{.tensor = apart};
  }

  const std::vector<double>& a = eager.measured.losses;
  const std::vector<double>& b = graph.measured.losses;
  std::size_t step = 0;
  while (step < std::min(a.size(), b.size()) && same_bits(a[step], b[step])) ++step;
  const std::string tensor = first_difference(eager.final, graph.final);
  const std::optional<Difference> validation = compare_validations(eager, graph);
  if (validation && validation->step <= static_cast<int64_t>(step)) return validation;
  if (step == a.size() && step == b.size()) {
    if (tensor.empty()) return std::nullopt;
    return Difference{.step = static_cast<int64_t>(step), .tensor = tensor};
  }
  Difference difference{.step = static_cast<int64_t>(step) + 1, .tensor = tensor.empty() ? "loss" : tensor};
  if (step < a.size()) difference.eager_loss = a[step];
  if (step < b.size()) difference.graph_loss = b[step];
  return difference;
}

double ratio(const std::vector<double>& eager, const std::vector<double>& graph) {
  const double median = spread(graph).median;
  return median > 0 ? spread(eager).median / median : 0;
}

// How fast the modes are beside each other: they take turns (eager, graph, eager, graph, ...), so that what else the
// machine does meets both.
struct Times {
  std::vector<double> rounds;  // how much less time graph takes, of each turn of both
  double cpu = 0;              // the same of CPU time, of all turns
  MachineLoad load;            // the most that was seen

  bool is_busy() const { return load.running + static_cast<double>(load.threads) > load.cores; }
  void see_load() {
    const MachineLoad now = read_machine_load();
    if (rounds.empty() || now.running > load.running) load = now;
  }
};

void append_times(Measurements& all, const Measurements& more) {
  for (auto times : {&Measurements::step_us, &Measurements::data_us, &Measurements::cpu_us}) {
    (all.*times).insert((all.*times).end(), (more.*times).begin(), (more.*times).end());
  }
}

// One turn of both modes. False if a signal ended it.
bool run_turn(const RunConfig& config, const Run& data, const Arguments& arguments, std::array<Half, 2>& halves) {
  for (std::size_t mode = 0; mode < 2; ++mode) {
    halves[mode] = run_mode(config, mode == 0 ? "eager" : "graph", data, arguments);
    if (StopSignals::received() != 0) return false;
  }
  return true;
}

// `measured`: the first turn, which is the comparison itself. `turn` runs a further one, which is short and measures
// alone; false if a signal ended it.
bool take_turns(std::array<Half, 2>& measured, Times& times, const std::function<bool(std::array<Half, 2>&)>& turn) {
  constexpr int kTurns = 3;
  times.rounds.push_back(ratio(measured[0].measured.step_us, measured[1].measured.step_us));
  for (int n = 1; n < kTurns; ++n) {
    std::array<Half, 2> halves;
    if (!turn(halves)) return false;
    times.rounds.push_back(ratio(halves[0].measured.step_us, halves[1].measured.step_us));
    for (std::size_t mode = 0; mode < 2; ++mode) append_times(measured[mode].measured, halves[mode].measured);
  }
  times.cpu = ratio(measured[0].measured.cpu_us, measured[1].measured.cpu_us);
  for (Half& half : measured) put_times(half.report, half.measured);
  return true;
}

Json to_json(const Half& eager, const Half& graph, const Times& times, const std::optional<Difference>& difference) {
  Json json;
  json["bit_identical"] = !difference;
  json["first_difference"] = nullptr;
  if (difference) {
    json["first_difference"] = {{"step", difference->step}, {"tensor", difference->tensor}};
    if (difference->eager_loss) json["first_difference"]["eager_loss"] = *difference->eager_loss;
    if (difference->graph_loss) json["first_difference"]["graph_loss"] = *difference->graph_loss;
  }
  json["speedup"] = ratio(eager.measured.step_us, graph.measured.step_us);
  json["speedup_of_turns"] = times.rounds;
  json["speedup_in_cpu_time"] = times.cpu;
  json["machine"] = {{"cores", times.load.cores},
                     {"threads", times.load.threads},
                     {"others_running", times.load.running},
                     {"busy", times.is_busy()}};
  json["eager"] = eager.report;
  json["graph"] = graph.report;
  return json;
}

void print_table(const Half& eager, const Half& graph) {
  std::vector<std::vector<std::string>> rows = {{"", "eager", "graph"}};
  const auto row = [&](const char* label, const auto& text_of_half) {
    rows.push_back({std::string("  ") + label, text_of_half(eager), text_of_half(graph)});
  };
  const auto time = [](const char* field, const char* which) {
    return [=](const Half& half) { return number_text(half.report[field][which], "%.1f us"); };
  };
  row("step, median", time("us_per_step", "median"));
  row("step, fastest", time("us_per_step", "min"));
  row("step, CPU time, median", time("cpu_us_per_step", "median"));
  row("wait for data, median", time("data_us_per_step", "median"));
  row("peak memory", [](const Half& half) { return readable_bytes(half.report["peak_bytes"]); });
  row("steps replayed", [](const Half& half) { return half.report["replays"].dump(); });
  row("final loss", [](const Half& half) {
    return half.measured.losses.empty() ? "none" : number_text(half.measured.losses.back(), "%.9g");
  });
  row("weights", [](const Half& half) { return half.report["weights_hash"].get<std::string>().substr(0, 16); });
  std::cout << text_columns(rows);
  for (const Json& fallback : graph.report["fallbacks"]) {
    std::cout << "  ran eager: " << fallback["signature"].get<std::string>()
              << "\n    because: " << fallback["reason"].get<std::string>() << "\n";
  }
}

void print_verdict(int64_t steps, const Json& json, const Times& times, const std::optional<Difference>& difference) {
  const std::string factor = number_text(json["speedup"], "%.2fx");
  const auto [slowest, fastest] = std::minmax_element(times.rounds.begin(), times.rounds.end());
  if (times.is_busy()) {
    std::cout << c10::str("the machine is busy: other processes keep ", times.load.running, " of ", times.load.cores,
                          " cores, beside ", times.load.threads, " threads of this one; trust CPU time (",
                          number_text(times.cpu, "%.2fx"), "), or compare when it is calm\n");
  }
  if (!difference) {
    std::cout << c10::str("bit-identical after ", steps, " steps; graph is ", factor, " as fast (",
                          number_text(*slowest, "%.2fx"), " to ", number_text(*fastest, "%.2fx"), " in ",
                          times.rounds.size(), " turns)");
  } else if (difference->step == 0) {
    std::cout << "NOT comparable: the modes started from different weights, first in " << difference->tensor
              << "; let the model draw all of its random numbers from LibTorch's default generators";
  } else {
    std::cout << c10::str("NOT identical: first seen after step ", difference->step, ", in ", difference->tensor,
                          "; graph is ", factor, " as fast");
  }
  std::cout << std::endl;
}

void print_bisection(const std::optional<HashDifference>& difference, std::size_t steps) {
  if (!difference) {
    std::cout << "every tensor of " << steps << " steps has the same bits\n";
  } else {
    std::cout << c10::str("first difference: step ", difference->step, ", ", difference->tensor, " (",
                          difference->differing, " of ", difference->compared, " tensors of that step differ)\n");
  }
}

}  // namespace

int compare_command(const Arguments& arguments) {
  refuse_ranks("compare");
  const RunConfig config = load_run_config(arguments);
  check_writable(arguments.json);
  const StopSignals signals;  // as long as there is a folder to remove
  Run data;
  read_training_data(config, data);
  warn_of_threads();
  Times times;
  times.see_load();
  std::array<Half, 2> halves;
  if (!run_turn(config, data, arguments, halves)) return report_stop("compare");
  const auto& [eager, graph] = halves;
  const std::optional<Difference> difference = compare(eager, graph);
  constexpr int64_t kFewSteps = 20;
  Arguments brief = arguments;
  brief.steps = std::min(arguments.steps, kFewSteps);
  brief.bisect = false;
  const auto turn = [&](std::array<Half, 2>& further) {
    times.see_load();
    return run_turn(config, data, brief, further);
  };
  if (!take_turns(halves, times, turn)) return report_stop("compare");
  Json json = to_json(eager, graph, times, difference);
  const std::optional<HashDifference> parting = first_difference(eager.hashes, graph.hashes);
  if (arguments.bisect) json["first_differing_tensor"] = to_json(parting);
  write_json(arguments.json, json);
  print_table(eager, graph);
  if (arguments.bisect) print_bisection(parting, graph.hashes.size());
  print_verdict(graph.report["steps"], json, times, difference);
  return difference ? 1 : 0;
}

}  // namespace duet
