// What one step costs, or a forward pass alone: a hand-written LibTorch loop, the same with torch::optim, and duet's
// two trainers, in CPU time of the whole process, on OMP_NUM_THREADS threads. Each repetition builds model and trainer
// anew from the same seed and does the same number of steps, so the contestants compute the same losses; a different
// one is reported as an error.
//
// scripts/bench runs it with interleaved repetitions and prints the ratios.

#include <cmath>
#include <map>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>
#include <torch/version.h>
#include "base/device.h"
#include "base/log.h"
#include "benchmarks/cases.h"
#include "benchmarks/hand_loop.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"

namespace duet::benchmarks {

namespace {

// Past the capture, which is the second step, the comparisons that follow it closely, and the first 1 024 replays,
// whose host code is always checked: the steps that are timed cost what those of a long run do. Where a step takes tens
// of milliseconds a check is cheap at any time.
int warm_up_of(const Case& item) { return item.steps >= 200 ? 1100 : item.steps >= 50 ? 68 : 34; }

struct Step {
  std::function<at::Tensor(const Batch&)> run;
  std::function<int64_t()> checked = [] { return 0; };  // replays so far whose host code was checked
};
using MakeStep = std::function<Step(std::unique_ptr<Task>)>;

template <class Loop>
Step hand_written(std::unique_ptr<Task> task) {
  return {[loop = std::make_shared<Loop>(std::move(task))](const Batch& batch) { return loop->step(batch); }};
}

TrainerOptions trainer_options() {
  TrainerOptions options;
  options.optimizer = duet::AdamW{.lr = kLearningRate, .weight_decay = kWeightDecay};
  options.device = "cpu";
  return options;
}

Step eager(std::unique_ptr<Task> task) {
  const auto trainer = std::make_shared<EagerTrainer>(std::move(task), trainer_options());
  return {[trainer](const Batch& batch) { return trainer->step(batch).loss; }};
}

// With the checks of host code as by default, never, or at every step.
template <Check check>
Step graph(std::unique_ptr<Task> task) {
  GraphOptions options;
  options.check = check;
  options.fuse_after = 0;  // before the steps that are timed
  const auto trainer = std::make_shared<GraphTrainer>(std::move(task), trainer_options(), options);
  return {[trainer](const Batch& batch) { return trainer->step(batch).loss; },
          [trainer] { return trainer->report().front().checked; }};
}

Step forward_by_hand(std::unique_ptr<Task> made) {
  const std::shared_ptr<Task> task = std::move(made);
  task->train(false);
  return {[task](const Batch& batch) {
    const at::NoGradGuard no_grad;
    return task->predict(batch).front().second;
  }};
}

template <class Trainer>
Step forward_by(std::unique_ptr<Task> task) {
  const auto trainer = std::make_shared<Trainer>(std::move(task), trainer_options());
  return {[trainer](const Batch& batch) { return trainer->predict(batch)["prediction"]; }};
}

// The loss after the last step, per case: the first contestant's is what the others must reach, but for rounding.
std::map<std::string, double>& reached_losses() {
  static std::map<std::string, double> losses;
  return losses;
}

void run(benchmark::State& state, const Case& item, const MakeStep& make_step) {
  seed_all(0);
  const Step step = make_step(item.task());
  const Batch batch = item.batch();
  for (int i = 0; i < warm_up_of(item); ++i) step.run(batch);
  const int64_t checked = step.checked();
  at::Tensor loss;
  for ([[maybe_unused]] auto _ : state) loss = step.run(batch);
  state.counters["checked"] = static_cast<double>(step.checked() - checked) / static_cast<double>(item.steps);

  const double value = loss.sum().item<double>();
  const double expected = reached_losses().try_emplace(item.name, value).first->second;
  state.counters["loss"] = value;
  if (!(std::abs(value - expected) <= 1e-2 * std::abs(expected) + 1e-5)) {
    const std::string message = "loss " + std::to_string(value) + ", another contestant's " + std::to_string(expected);
    state.SkipWithError(message.c_str());
  }
}

void add_benchmarks() {
  const std::vector<std::pair<std::string, MakeStep>> contestants = {
      {"hand", hand_written<HandLoop>},
      {"hand_optim", hand_written<OptimLoop>},
      {"eager", eager},
      {"graph", graph<Check::kBudget>},
      {"graph_unchecked", graph<Check::kOff>},
      {"graph_checked", graph<Check::kEvery>},
  };
  const std::vector<std::pair<std::string, MakeStep>> forward = {
      {"hand", forward_by_hand}, {"eager", forward_by<EagerTrainer>}, {"graph", forward_by<GraphTrainer>}};
  for (const Case& item : cases()) {
    for (const auto& [name, make_step] : item.is_forward ? forward : contestants) {
      const auto body = [item, make_step = make_step](benchmark::State& state) { run(state, item, make_step); };
      benchmark::RegisterBenchmark((item.name + "/" + name).c_str(), body)
          ->Iterations(item.steps)
          ->Unit(benchmark::kMicrosecond)
          ->MeasureProcessCPUTime();
    }
  }
}

}  // namespace

}  // namespace duet::benchmarks

int main(int argc, char** argv) {
  benchmark::AddCustomContext("libtorch", TORCH_VERSION);
  benchmark::AddCustomContext("instruction_set", at::get_cpu_capability());
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  duet::set_log_level(duet::LogLevel::kWarning);
  duet::benchmarks::add_benchmarks();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
