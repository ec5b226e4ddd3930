#include <algorithm>
#include <array>
#include <bit>
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
#include "cli/report.h"
#include "cli/runs/text_columns.h"
#include "cli/work_dir.h"
#include "core/task.h"
#include "graph/graph_trainer.h"
#include "hooks/stop_signal_hook.h"

namespace duet {

namespace {

using Json = nlohmann::ordered_json;

// The bits of what a run has after a step, as hashes by name.
struct StepHashes {
  int64_t step = 0;  // 0: before the first one
  std::vector<std::pair<std::string, std::string>> tensors{};
};

// Adds weights and buffers.
void add_hashes(const Task& task, StepHashes& hashes) {
  for (const auto& [name, weight] : task.named_parameters()) {
    hashes.tensors.emplace_back("weight '" + name + "'", bits_hash(weight.detach()));
  }
  for (const auto& [name, buffer] : task.named_buffers()) {
    hashes.tensors.emplace_back("buffer '" + name + "'", bits_hash(buffer));
  }
}

struct HashDifference {
  int64_t step = 0;
  std::string tensor{};   // the first of that step
  int64_t differing = 0;  // tensors of that step, out of
  int64_t compared = 0;
};

// Where two runs part; nothing if they do not. A run that is longer parts where the other ends.
std::optional<HashDifference> first_difference(const std::vector<StepHashes>& a, const std::vector<StepHashes>& b) {
  const std::size_t both = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < both; ++i) {
    HashDifference found{a[i].step, "", 0, static_cast<int64_t>(std::max(a[i].tensors.size(), b[i].tensors.size()))};
    for (std::size_t t = 0; t < static_cast<std::size_t>(found.compared); ++t) {
      const bool in_both = t < a[i].tensors.size() && t < b[i].tensors.size();
      if (in_both && a[i].tensors[t] == b[i].tensors[t]) continue;
      if (found.differing++ == 0) found.tensor = (t < a[i].tensors.size() ? a : b)[i].tensors[t].first;
    }
    if (found.differing > 0) return found;
  }
  if (a.size() == b.size()) return std::nullopt;
  const std::vector<StepHashes>& longer = a.size() > b.size() ? a : b;
  return HashDifference{longer[both].step, "the step itself, which one run does not have", 1, 1};
}

// Fills `steps`, which must outlive it, after each of the first `limit` steps: loss, logged values, gradients (the last
// layer's first, as backward makes them), weights, buffers. Waits for the device.
class StepHashHook : public Hook {
 public:
  StepHashHook(std::vector<StepHashes>& steps, int64_t limit) : steps_(steps), limit_(limit) {}
  std::string name() const override { return "step_hashes"; }
  int priority() const override { return kLowest; }
  void after_train_iter(TrainContext& context) override {
    if (static_cast<int64_t>(steps_.size()) >= limit_) return;
    StepHashes hashes{context.progress.step, {}};
    const auto add = [&hashes](const std::string& name, const at::Tensor& tensor) {
      if (tensor.defined()) hashes.tensors.emplace_back(name, bits_hash(tensor.detach()));
    };
    add("loss", context.step.loss());
    for (const auto& [name, value] : context.step.result->log) add("logged value '" + name + "'", value);
    const NamedTensors weights = context.task.named_parameters();
    for (auto weight = weights.rbegin(); weight != weights.rend(); ++weight) {
      add("gradient of '" + weight->first + "'", weight->second.grad());
    }
    add("gradient norm", context.step.result->grad_norm);
    add_hashes(context.task, hashes);
    steps_.push_back(std::move(hashes));
  }

 private:
  std::vector<StepHashes>& steps_;
  int64_t limit_;
};

// One mode's half of the comparison.
struct Half {
  Json report;
  Measurements measured;
  std::vector<StepHashes> seen;    // what is compared: weights at the start, losses, validations, what the run leaves
  std::vector<StepHashes> hashes;  // of every step, if asked for
  bool is_unstable = false;        // an op gave other bits from run to run
};

// Bits, so that NaN equals NaN and -0 does not equal 0.
std::string bits_of(double value) { return std::to_string(std::bit_cast<uint64_t>(value)); }

// Parameters, buffers, and what hooks hold.
StepHashes end_of(BaseTrainer& trainer) {
  StepHashes end{trainer.progress().step};
  add_hashes(trainer.task(), end);
  const StateDict hooks = trainer.hooks().state_dict();
  for (const auto& [name, tensor] : hooks.tensors()) {
    end.tensors.emplace_back("'hooks." + name + "'", bits_hash(tensor.detach()));
  }
  return end;
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
  half.seen.emplace_back();
  run.trainer->add_hook(std::make_unique<MeasureHook>(half.measured, steps));
  std::vector<StepHashes> validations;
  const auto record = [&validations](TrainContext& at) {
    StepHashes& results = validations.emplace_back(at.progress.step);
    for (const auto& [name, value] : at.evaluation.metrics) results.tensors.emplace_back("val/" + name, bits_of(value));
  };
  run.trainer->on(HookPoint::kAfterVal, record, "compare", kLowest);
  run.trainer->add_hook(std::make_unique<StopSignalHook>());
  if (arguments.bisect) run.trainer->add_hook(std::make_unique<StepHashHook>(half.hashes, steps));

  add_hashes(run.trainer->task(), half.seen.front());
  train_on(*run.train, config, run);
  half.report = report_of(run, mode, half.measured);
  half.is_unstable = run.graph != nullptr &&
                     std::ranges::any_of(run.graph->report(), [](const auto& one) { return one.nondeterministic > 0; });
  for (const double loss : half.measured.losses)
    half.seen.push_back({std::ssize(half.seen), {{"loss", bits_of(loss)}}});
  half.seen.insert(half.seen.end(), validations.begin(), validations.end());
  std::ranges::stable_sort(half.seen, {}, &StepHashes::step);
  half.seen.push_back(end_of(*run.trainer));
  return half;
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
};

void append_times(Measurements& all, const Measurements& more) {
  for (auto times : {&Measurements::step_us, &Measurements::data_us, &Measurements::cpu_us}) {
    (all.*times).insert((all.*times).end(), (more.*times).begin(), (more.*times).end());
  }
}

// Both modes in turns: the first is the comparison itself, further ones are short and measure alone. False if a signal
// ended it.
bool take_turns(const RunConfig& config, const Arguments& arguments, std::array<Half, 2>& halves, Times& times) {
  constexpr std::size_t kTurns = 3;
  constexpr int64_t kFewSteps = 20;
  Run data;
  read_training_data(config, data);
  warn_of_threads();
  Arguments turn = arguments;
  while (times.rounds.size() < kTurns) {
    const MachineLoad now = read_machine_load();
    if (times.rounds.empty() || now.running > times.load.running) times.load = now;
    std::array<Half, 2> further;
    for (std::size_t mode = 0; mode < 2; ++mode) {
      further[mode] = run_mode(config, mode == 0 ? "eager" : "graph", data, turn);
      if (StopSignals::received() != 0) return false;
    }
    times.rounds.push_back(ratio(further[0].measured.step_us, further[1].measured.step_us));
    for (std::size_t mode = 0; mode < 2; ++mode) {
      if (times.rounds.size() == 1) {
        halves[mode] = std::move(further[mode]);
      } else {
        append_times(halves[mode].measured, further[mode].measured);
      }
    }
    turn.steps = std::min(arguments.steps, kFewSteps);
    turn.bisect = false;
  }
  times.cpu = ratio(halves[0].measured.cpu_us, halves[1].measured.cpu_us);
  for (Half& half : halves) put_times(half.report, half.measured);
  return true;
}

Json to_json(const Half& eager, const Half& graph, const Times& times,
             const std::optional<HashDifference>& difference) {
  Json json;
  json["bit_identical"] = !difference;
  json["first_difference"] = nullptr;
  if (difference) {
    Json& first = json["first_difference"] = {{"step", difference->step}, {"tensor", difference->tensor}};
    const auto place = static_cast<std::size_t>(difference->step) - 1;  // of step 0 none
    for (const auto& [key, half] : {std::pair("eager_loss", &eager), std::pair("graph_loss", &graph)}) {
      if (place < half->measured.losses.size()) first[key] = half->measured.losses[place];
    }
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

void print_verdict(int64_t steps, const Json& json, const Times& times,
                   const std::optional<HashDifference>& difference) {
  const std::string factor = number_text(json["speedup"], "%.2fx");
  const auto [slowest, fastest] = std::minmax_element(times.rounds.begin(), times.rounds.end());
  if (times.is_busy()) {
    std::cout << c10::str("the machine is busy: ", times.load.running, " threads of other processes run beside the ",
                          times.load.threads, " of this one on ", times.load.cores, " cores; trust CPU time (",
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
  const RunConfig config = load_run_config(arguments);
  const StopSignals signals;  // as long as there is a folder to remove
  Times times;
  std::array<Half, 2> halves;
  if (!take_turns(config, arguments, halves, times)) return report_stop("compare");
  const auto& [eager, graph] = halves;
  const std::optional<HashDifference> difference = first_difference(eager.seen, graph.seen);
  Json json = to_json(eager, graph, times, difference);
  const std::optional<HashDifference> parting = first_difference(eager.hashes, graph.hashes);
  if (arguments.bisect) json["first_differing_tensor"] = nullptr;
  if (parting) {
    json["first_differing_tensor"] = {{"step", parting->step},
                                      {"tensor", parting->tensor},
                                      {"differing", parting->differing},
                                      {"compared", parting->compared}};
  }
  write_json(arguments.json, json);
  print_table(eager, graph);
  if (arguments.bisect) print_bisection(parting, graph.hashes.size());
  print_verdict(graph.report["steps"], json, times, difference);
  if (difference && graph.is_unstable) {
    std::cout << "an op of the step gives other bits in every run (see the warning): compare with "
                 "trainer.deterministic=true\n";
  }
  return difference ? 1 : 0;
}

}  // namespace duet
