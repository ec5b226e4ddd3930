#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "cli/build.h"
#include "cli/commands/commands.h"
#include "cli/report.h"
#include "cli/work_dir.h"
#include "distributed/communicator.h"
#include "hooks/stop_signal_hook.h"

namespace duet {

namespace {

// The first `limit` micro-batches of an epoch as if they were all of it, though its length stays that of the whole:
// schedules and intervals count on it.
class ShortEpoch : public ForwardingSource {
 public:
  ShortEpoch(DataSource& data, int64_t limit) : ForwardingSource(data), limit_(limit) {}

  void start_epoch(int64_t epoch) override {
    source_.start_epoch(epoch);
    given_ = 0;
  }
  std::optional<Batch> next() override {
    if (given_ == limit_) return std::nullopt;
    ++given_;
    return source_.next();
  }

 private:
  int64_t limit_;
  int64_t given_ = 0;
};

RunConfig shortened(RunConfig config, const std::string& folder) {
  config = in_scratch(std::move(config), folder);
  LoopOptions& loop = config.trainer.loop;
  loop.max_seconds = 0;
  if (loop.max_steps > 0) loop.max_steps = std::max(loop.max_steps, config.dry_run + 1);  // the epoch comes to its end
  loop.val_interval = 1;
  loop.val_by_epoch = true;
  // Not in place of them: a share that comes to no batch fails here too.
  config.limits.val.most = config.limits.test.most = config.limits.predict.most = config.dry_run;
  return config;
}

void test(const RunConfig& config, BaseTrainer& trained) {
  if (config.test.empty()) return;
  RunConfig testing = config;
  testing.metrics = config.test_metrics;
  Run run = build_evaluation(testing, config.test);
  run.trainer->load_weights(trained.weights());
  test_on(config.test, run);
}

void predict(const RunConfig& config, BaseTrainer& trained) {
  if (!config.predict) return;
  const Run run = build_evaluation(config, {*config.predict}, config.work_dir + "/predictions");
  run.trainer->load_weights(trained.weights());
  run.trainer->predict(*run.test.front(), nullptr);
}

// Before the first step of a run in graph mode, when hooks are ready for it.
void explain_at_start(const RunConfig& config, BaseTrainer& trainer) {
  if (config.mode != "graph" || !config.communicator().is_single()) return;
  const auto explain = [&config, &trainer, done = false](TrainContext& at) mutable {
    if (std::exchange(done, true)) return;
    const StepExplanation explanation = trainer.explain(at.step.micro_batches->batches);
    std::cout << explanation.text() << std::flush;
    refuse_if_strict(config, explanation);
  };
  trainer.on(HookPoint::kBeforeTrainIter, explain, "explain", kHighest);  // a profiler has not begun, nor has the clock
}

// False if a signal came.
bool train(const RunConfig& config, const std::string& json, Run& run) {
  run_on_all_ranks(config.communicator(), [&] { add_hooks(config, run); });
  load_start_weights(config, *run.trainer);
  run.trainer->add_hook(std::make_unique<StopSignalHook>());
  explain_at_start(config, *run.trainer);
  Measurements measured;
  run.trainer->add_hook(std::make_unique<MeasureHook>(measured));
  run.trainer->on(
      HookPoint::kAfterTrainEpoch, [](TrainContext& at) { at.control.request_stop("a dry run"); }, "dry_run", kLowest);
  ShortEpoch data(*run.train, config.dry_run * config.trainer.loop.accumulate);
  train_on(data, config, run);
  if (run.trainer->outcome() == RunOutcome::kInterrupted) return false;
  if (!json.empty() && config.is_main()) write_json(json, report_of(run, config.mode, measured));
  return true;
}

// On any rank. All of them ask.
bool is_stopped(const RunConfig& config) {
  const std::vector<int64_t> signals = config.communicator().gather(int64_t{StopSignals::received()});
  return std::ranges::any_of(signals, [](int64_t signal) { return signal != 0; });
}

// False if a signal came.
bool try_all(const RunConfig& config, const std::string& json) {
  Run run = build_training(config);
  if (!train(config, json, run)) return false;
  test(config, *run.trainer);
  if (is_stopped(config)) return false;
  predict(config, *run.trainer);
  return !is_stopped(config);
}

}  // namespace

int dry_run(const RunConfig& config, const std::string& json) {
  if (config.dry_run < 1)
    config.root.child("trainer").fail("fast_dev_run", "is no number of steps, expected at least 1");
  const StopSignals signals;  // as long as there is a folder to remove
  const ScratchFolder folder;
  if (!try_all(shortened(config, folder.path()), json)) return report_stop("dry run");
  if (config.is_main()) std::cout << "dry run: all parts work" << std::endl;
  return 0;
}

}  // namespace duet
