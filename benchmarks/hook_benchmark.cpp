// What the default hooks cost: the same run of the loop with and without them, in both modes, on one thread, in CPU
// time of the process (the logger's thread included). Repetitions are interleaved; the table shows medians of the time
// per step and of the differences between neighbours. The log goes to stderr.
//
//   hook_benchmark [--repetitions N] [--steps N]

#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <stdlib.h>
#include "base/device.h"
#include "base/log.h"
#include "benchmarks/figures.h"
#include "benchmarks/flags.h"
#include "benchmarks/repeated_batch.h"
#include "cli/zoo/classifiers.h"
#include "cli/zoo/gpt.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"
#include "hooks/default_hooks.h"

namespace duet::benchmarks {

namespace {

struct Model {
  std::string name;
  std::function<std::unique_ptr<Task>()> task;
  std::function<Batch()> batch;
  int64_t steps;  // per repetition
};

std::vector<Model> models() {
  const auto mlp = [] {
    MlpOptions options;
    options.in_features = 64;
    options.num_classes = 10;
    options.hidden = {64};
    return make_mlp(options);
  };
  const auto gpt = [] {
    GptOptions options;
    options.vocab_size = 65;
    options.n_layer = 2;
    options.n_head = 4;
    options.n_embd = 64;
    options.context = 32;
    options.dropout = 0;
    return make_gpt(options);
  };
  const auto image = [] { return Batch{{"image", at::randn({8, 64})}, {"target", at::randint(10, {8}, at::kLong)}}; };
  const auto text = [] {
    return Batch{{"input", at::randint(65, {1, 32}, at::kLong)}, {"target", at::randint(65, {1, 32}, at::kLong)}};
  };
  return {{"MLP 64-64-10, batch 8", mlp, image, 10000}, {"GPT d64 L2, 1x32", gpt, text, 1000}};
}

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
double measure(const Model& model, const std::string& mode, int64_t steps, bool hooks, const std::string& work_dir) {
  constexpr int64_t kWarmUp = 68;
  seed_all(0);
  TrainerOptions options;
  options.optimizer = AdamW{};
  options.device = "cpu";
  options.loop = {.max_steps = kWarmUp + steps};
  options.work_dir = work_dir;
  if (hooks) options.schedules = {Cosine{}};
  std::unique_ptr<BaseTrainer> trainer;
  if (mode == "graph") {
    trainer = std::make_unique<GraphTrainer>(model.task(), options);
  } else {
    trainer = std::make_unique<EagerTrainer>(model.task(), options);
  }
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

void print_row(const Model& model, const std::string& mode, int64_t steps, int64_t repetitions,
               const std::string& work_dir) {
  const auto without = [&] { return measure(model, mode, steps, false, ""); };
  const auto with = [&] { return measure(model, mode, steps, true, work_dir); };
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
  for (const Model& model : models()) {
    for (const char* mode : {"eager", "graph"}) {
      print_row(model, mode, flags.number("--steps", model.steps), repetitions, folder);
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
