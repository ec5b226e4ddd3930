// What the default hooks cost: the same run of the loop with and without them, in both modes, on one thread, in CPU
// time of the process (the logger's thread included). Repetitions are interleaved; the table shows medians of the time
// per step and of the differences between neighbours. The log goes to stderr.
//
//   hook_benchmark [--repetitions N] [--steps N]

#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>
#include <ATen/Parallel.h>
#include <stdlib.h>
#include "base/device.h"
#include "benchmarks/cases.h"
#include "benchmarks/figures.h"
#include "benchmarks/flags.h"
#include "benchmarks/repeated_batch.h"
#include "core/trainer.h"
#include "hooks/default_hooks.h"
#include "make_trainer.h"

namespace duet::benchmarks {

namespace {

// Times the steps after the first `warm_up`: past the capture, and the comparisons that follow it closely.
class StopWatch : public Hook {
 public:
  StopWatch(int64_t warm_up, double& seconds) : warm_up_(warm_up), seconds_(seconds) {}
  std::string name() const override { return "stop_watch"; }
  int priority() const override { return kHighest; }
  void before_train_iter(TrainContext& context) override {
    if (context.progress.step == warm_up_) start_ = cpu_seconds();
  }
  // The logger's after_train comes later, and with it the wait for its thread; its lines are written as they come.
  void after_train(TrainContext& /*context*/) override { seconds_ = cpu_seconds() - start_; }

 private:
  int64_t warm_up_;
  double& seconds_;
  double start_ = 0;
};

// Microseconds of one step.
double measure(const Case& model, Mode mode, int64_t steps, bool hooks, const std::string& work_dir) {
  constexpr int64_t kWarmUp = 68;
  seed_all(0);
  TrainerOptions options;
  options.optimizer = AdamW{};
  options.device = "cpu";
  options.loop = {.max_steps = kWarmUp + steps};
  options.work_dir = work_dir;
  if (hooks) options.schedules = {Cosine{}};
  const auto trainer = make_trainer(mode, model.task(), options);
  double seconds = 0;
  trainer->add_hook(std::make_unique<StopWatch>(kWarmUp, seconds));
  if (hooks) {
    DefaultHooksOptions defaults;
    defaults.checkpoint.interval = 0;  // the cost of a save is that of the disk
    defaults.checkpoint.save_last = false;
    register_default_hooks(*trainer, defaults);
  }
  RepeatedBatch data(model.batch());
  trainer->train(data);
  return seconds * 1e6 / static_cast<double>(steps);
}

void print_row(const Case& model, const std::string& mode, int64_t steps, int64_t repetitions,
               const std::string& work_dir) {
  const auto without = [&] { return measure(model, parse_mode(mode), steps, false, ""); };
  const auto with = [&] { return measure(model, parse_mode(mode), steps, true, work_dir); };
  std::vector<double> plain, full, cost;
  for (int64_t i = 0; i < repetitions; ++i) {
    // A steady drift of the machine cancels out.
    const double before = without();
    const double hooks = (with() + with()) / 2;
    plain.push_back((before + without()) / 2);
    full.push_back(hooks);
    cost.push_back(full.back() - plain.back());
  }
  std::printf("%-24s %-6s %10.1f %10.1f %8.1f %7.1f %%\n", model.name.c_str(), mode.c_str(), median(plain),
              median(full), median(cost), 100 * median(cost) / median(plain));
  std::fflush(stdout);
}

}  // namespace

int run(const Flags& flags) {
  const int64_t repetitions = flags.number("--repetitions", 7);
  std::string folder = (std::filesystem::temp_directory_path() / "duet-hooks-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  std::printf("%-24s %-6s %10s %10s %8s %9s   (µs per step)\n", "model", "mode", "no hooks", "defaults", "cost",
              "share");
  const std::set<std::string> shown = {"MLP 64-64-10, batch 8", "GPT d64 L2, 1x32"};
  for (const Case& model : cases()) {
    if (!shown.contains(model.name)) continue;
    for (const char* mode : {"eager", "graph"}) {
      print_row(model, mode, flags.number("--steps", model.steps / 2), repetitions, folder);
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace duet::benchmarks

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return duet::benchmarks::run(duet::benchmarks::Flags(argc, argv));
}
