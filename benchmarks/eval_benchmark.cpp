// What evaluation costs in each mode: a pass of trainer.validate() with its metrics, per batch, on one thread, in CPU
// time of the process. `task` is the forward pass alone: Task::validation_step by hand, without gradients and in
// evaluation mode all along. Repetitions are interleaved; the table shows medians.
//
//   eval_benchmark [--repetitions N] [--calls N] [--filter TEXT]

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include "base/device.h"
#include "base/log.h"
#include "benchmarks/cases.h"
#include "benchmarks/figures.h"
#include "benchmarks/flags.h"
#include "benchmarks/repeated_batch.h"
#include "core/trainer.h"
#include "make_trainer.h"
#include "metrics/class_metric.h"

namespace duet::benchmarks {

namespace {

// Runs `calls` forward passes.
using Contestant = std::function<void(int64_t calls)>;

Contestant by_trainer(const Case& item, Mode mode) {
  seed_all(0);
  const std::shared_ptr<BaseTrainer> trainer = make_trainer(mode, item.task(), {.device = "cpu"});
  if (const Batch batch = item.batch(); batch.has("image") && batch["target"].dim() == 1)
    trainer->add_metric<Accuracy>();
  return [trainer, batch = item.batch()](int64_t calls) {
    RepeatedBatch data(batch, calls);
    trainer->validate(data);
  };
}

Contestant by_hand(const Case& item) {
  seed_all(0);
  const std::shared_ptr<Task> task = item.task();
  task->train(false);
  return [task, batch = item.batch()](int64_t calls) {
    const at::NoGradGuard no_grad;
    for (int64_t i = 0; i < calls; ++i) task->validation_step(batch);
  };
}

double microseconds(const Contestant& contestant, int64_t calls) {
  const double start = cpu_seconds();
  contestant(calls);
  return (cpu_seconds() - start) * 1e6 / static_cast<double>(calls);
}

void print_row(const Case& item, int64_t calls, int64_t repetitions) {
  const std::vector<Contestant> contestants = {by_hand(item), by_trainer(item, Mode::kEager),
                                               by_trainer(item, Mode::kGraph)};
  // Past the capture and, where a pass is short, the checks of host code that follow it (CheckSchedule::kFirst).
  for (const Contestant& contestant : contestants) contestant(std::max<int64_t>(calls / 4, calls > 1500 ? 1500 : 70));
  std::vector<std::vector<double>> times(contestants.size());
  for (int64_t r = 0; r < repetitions; ++r) {
    for (std::size_t c = 0; c < contestants.size(); ++c) times[c].push_back(microseconds(contestants[c], calls));
  }
  const double task = median(times[0]), eager = median(times[1]), graph = median(times[2]);
  std::printf("%-30s %10.1f %10.1f %10.1f %8.2f\n", item.name.c_str(), task, eager, graph, eager / graph);
  std::fflush(stdout);
}

}  // namespace

int run(const Flags& flags) {
  set_log_level(LogLevel::kWarning);
  std::printf("%-30s %10s %10s %10s %8s   (µs per batch)\n", "model", "task", "eager", "graph", "eager/gr");
  const std::string filter = flags.text("--filter");
  for (const Case& item : cases()) {
    if (item.is_forward || item.name.find(filter) == std::string::npos) continue;
    print_row(item, flags.number("--calls", item.steps), flags.number("--repetitions", 7));
  }
  return 0;
}

}  // namespace duet::benchmarks

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return duet::benchmarks::run(duet::benchmarks::Flags(argc, argv));
}
