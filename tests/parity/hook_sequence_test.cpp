#include <algorithm>
#include <csignal>
#include <gmock/gmock.h>
#include "base/error.h"
#include "hooks/detail/run_info_hooks.h"
#include "hooks/ema_hook.h"
#include "hooks/stop_signal_hook.h"
#include "metrics/class_metric.h"
#include "tests/support/loop_runs.h"

// A hook sees the same points with the same counters in both modes, however a run ends.

namespace duet {
namespace {

using testing::EveryPointHook;
using testing::loader;
using testing::Names;
using testing::trainer_for;

// One run: its limits, and what befalls it.
struct Scenario {
  std::string name;
  LoopOptions loop;
  int64_t samples = 12;  // in batches of 2
  // What the acting hook does when it is called at `point`; it stands before the recording one.
  std::function<void(const std::string& point, TrainContext& context)> act = nullptr;
};

std::string seen(const std::string& point, const TrainContext& c) {
  std::string text = point + " u" + std::to_string(c.progress.step) + " e" + std::to_string(c.progress.epoch) + "." +
                     std::to_string(c.progress.step_in_epoch) + " i" + std::to_string(c.evaluation.batch_index) + " " +
                     to_string(c.control.outcome);
  if (c.step.micro_batches != nullptr) text += " w" + std::to_string(c.step.micro_batches->batches.size());
  if (c.step.result != nullptr && c.step.loss().defined())
    text += " loss " + std::to_string(c.step.loss().item<double>());
  for (const auto& [name, value] : c.evaluation.metrics) text += " " + name + " " + std::to_string(value);
  if (!c.control.error.empty()) text += " error " + c.control.error;
  if (!c.control.stop_reason.empty()) text += " stop " + c.control.stop_reason;
  return text;
}

// Everything a recording hook sees, and how the run ended.
Names record(const std::string& mode, const Scenario& scenario) {
  Names calls;
  const auto trainer = trainer_for(mode, scenario.loop);
  if (scenario.act) trainer->add_hook(std::make_unique<EveryPointHook>("actor", scenario.act));
  trainer->add_hook(std::make_unique<EveryPointHook>(
      "recorder", [&](const std::string& point, TrainContext& c) { calls.push_back(seen(point, c)); }));
  trainer->add_hook(std::make_unique<IterTimerHook>());
  trainer->add_hook(std::make_unique<EMAHook>());
  trainer->add_hook(std::make_unique<StopSignalHook>());
  trainer->add_metric(std::make_unique<Accuracy>());
  const auto training = loader(scenario.samples), validation = loader(4, 5, false);
  try {
    trainer->train(*training, validation.get());
    trainer->test(*validation);
    trainer->predict(*validation);
  } catch (const std::exception& error) {
    calls.push_back(std::string("threw ") + error.what());
  }
  calls.push_back(std::string("ended ") + to_string(trainer->outcome()));
  return calls;
}

void expect_same_sequence(const Scenario& scenario) {
  const Names eager = record("eager", scenario), graph = record("graph", scenario);
  ASSERT_FALSE(eager.empty());
  for (std::size_t i = 0; i < std::min(eager.size(), graph.size()); ++i) {
    ASSERT_EQ(eager[i], graph[i]) << scenario.name << ", call " << i;
  }
  EXPECT_EQ(eager.size(), graph.size()) << scenario.name;
}

// Does `what` the first time that `point` is reached at `step` or later.
auto once(const std::string& point, int64_t step, std::function<void(TrainContext&)> what) {
  return [=, done = false](const std::string& at, TrainContext& context) mutable {
    if (done || at != point || context.progress.step < step) return;
    done = true;
    what(context);
  };
}

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all = {
      {"ByEpoch", {.max_epochs = 3}},
      {"ByStepWithValidation", {.max_steps = 14, .val_interval = 4}},
      {"Accumulate4WithTail", {.max_epochs = 3, .accumulate = 4, .val_interval = 1}, 22},
      {"LimitInTheMiddleOfAnEpoch", {.max_steps = 8}},
      {"LimitedBatches",
       {.max_epochs = 4,
        .accumulate = 2,
        .val_interval = 2,
        .val_by_epoch = true,
        .limit_train_batches = 5,
        .limit_val_batches = 1,
        .limit_predict_batches = 1}},
  };
  for (const int64_t accumulate : {1, 4}) {
    const LoopOptions loop = {.max_epochs = 4, .accumulate = accumulate, .val_interval = 2};
    const std::string suffix = std::to_string(accumulate);
    const auto stop = [](TrainContext& c) { c.control.request_stop("enough"); };
    const auto raise_signal = [](TrainContext&) { std::raise(SIGTERM); };
    all.push_back({"EarlyStop" + suffix, loop, 12, once("after_val_epoch", 2, stop)});
    all.push_back({"StopAtAnStep" + suffix, loop, 12, once("after_train_iter", 3, stop)});
    all.push_back({"SignalInAnStep" + suffix, loop, 12, once("after_backward", 3, raise_signal)});
    all.push_back({"SignalInAValidation" + suffix, loop, 12, once("before_val_iter", 3, raise_signal)});
    all.push_back({"SignalBeforeTraining" + suffix, loop, 12, once("before_run", 0, raise_signal)});
    all.push_back({"SignalBetweenEpochs" + suffix, loop, 12, once("after_train_epoch", 2, raise_signal)});
  }
  return all;
}

class HookSequence : public ::testing::TestWithParam<Scenario> {};

TEST_P(HookSequence, IsTheSameInBothModes) { expect_same_sequence(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Runs, HookSequence, ::testing::ValuesIn(scenarios()),
                         [](const auto& info) { return info.param.name; });

// Those that every run here reaches.
Names run_points() {
  Names points;
#define DUET_NAME(point, member) points.emplace_back(#member);
  DUET_HOOK_POINTS(DUET_NAME)
#undef DUET_NAME
  std::erase_if(points, [](const std::string& point) {
    return point.find("checkpoint") != std::string::npos || point == "on_exception" || point == "on_log";
  });
  return points;
}

class ErrorAtPoint : public ::testing::TestWithParam<std::string> {};

// One hook's error: every other hook still hears of the end, the error that comes out is the first one.
TEST_P(ErrorAtPoint, IsReportedAlikeInBothModes) {
  const std::string point = GetParam();
  for (const int64_t accumulate : {1, 4}) {
    const auto fail = [](TrainContext&) { throw DataError("planted"); };
    const LoopOptions loop = {.max_epochs = 3, .accumulate = accumulate, .val_interval = 2};
    const Scenario scenario = {point, loop, 12, once(point, 0, fail)};
    expect_same_sequence(scenario);
    const Names calls = record("graph", scenario);
    const auto text = [&] {
      std::string all;
      for (const std::string& call : calls) all += call + "\n";
      return all;
    };
    EXPECT_THAT(text(), ::testing::HasSubstr("threw [HookList] hook 'actor' failed at " + point)) << text();
    const bool in_training = point.find("test") == std::string::npos && point.find("predict") == std::string::npos;
    EXPECT_EQ(calls.back(), in_training ? "ended failed" : "ended finished");
    // The recorder comes after the hook that failed and hears of each end nevertheless, once.
    const auto ends = [&](const std::string& end) {
      return std::count_if(calls.begin(), calls.end(), [&](const std::string& call) { return call.starts_with(end); });
    };
    EXPECT_EQ(ends("after_train u"), 1);
    const int runs_before = point.find("predict") != std::string::npos ? 2 : in_training ? 0 : 1;
    EXPECT_EQ(ends("after_run u"), runs_before + 1);
    const bool ends_run =
        point == "after_train" || point == "after_test" || point == "after_predict" || point == "after_run";
    EXPECT_EQ(ends("on_exception u"), ends_run ? 0 : 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Points, ErrorAtPoint, ::testing::ValuesIn(run_points()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace duet
