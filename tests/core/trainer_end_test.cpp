#include <csignal>
#include <utility>
#include <gmock/gmock.h>
#include "base/error.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/stop_signal_hook.h"
#include "metrics/class_metric.h"
#include "tests/support/expect_error.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

// How runs end, are cut short, and go on.

namespace duet {
namespace {

using testing::EveryPointHook;
using testing::loader;
using testing::Names;
using testing::trainer_for;

class TrainerEnd : public testing::InBothModes {};

using Act = std::function<void(const std::string&, TrainContext&)>;

void add_hook(BaseTrainer& trainer, Act act, const std::string& name = "actor") {
  trainer.add_hook(std::make_unique<EveryPointHook>(name, std::move(act)));
}

// Notes the outcome that hooks see at the end.
void watch_outcome(BaseTrainer& trainer, Names& seen) {
  add_hook(
      trainer,
      [&seen](const std::string& point, TrainContext& context) {
        if (point == "after_train" || point == "after_run")
          seen.push_back(point + " " + to_string(context.control.outcome));
      },
      "watch");
}

TEST_P(TrainerEnd, HasAnOutcomeThatHooksSee) {
  struct Case {
    std::string outcome;
    Act act;
  };
  const std::vector<Case> cases = {
      {"finished", [](const std::string&, TrainContext&) {}},
      {"stopped",
       [](const std::string& point, TrainContext& c) {
         if (point == "after_train_iter" && c.progress.step == 2) c.control.request_stop("enough");
       }},
      {"interrupted",
       [](const std::string& point, TrainContext& c) {
         if (point == "after_train_iter" && c.progress.step == 2) c.control.interrupt("later");
       }},
      // In the very last step: not finished, whatever the counters say.
      {"failed",
       [](const std::string& point, TrainContext& c) {
         if (point == "after_train_iter" && c.progress.step == 4) throw DataError("planted");
       }},
  };
  for (const Case& one : cases) {
    const auto trainer = trainer_for(mode(), {.max_steps = 4, .val_interval = 4});
    EXPECT_EQ(trainer->outcome(), RunOutcome::kNone);
    Names seen;
    watch_outcome(*trainer, seen);
    int validations = 0;
    add_hook(*trainer, [&](const std::string& point, TrainContext& c) {
      validations += point == "before_val" ? 1 : 0;
      one.act(point, c);
    });
    try {
      trainer->train(*loader(12), loader(4).get());
    } catch (const DataError&) {
    }
    EXPECT_EQ(to_string(trainer->outcome()), one.outcome);
    EXPECT_EQ(seen, (Names{"after_train " + one.outcome, "after_run " + one.outcome}));
    EXPECT_EQ(validations, one.outcome == "finished" ? 1 : 0) << one.outcome;
  }
}

TEST_P(TrainerEnd, AnInterruptedRunGoesOnAsIfNothingHadBeen) {
  for (const std::string moment : {"after_train_iter", "before_val_iter", "after_val_iter", "after_train_epoch"}) {
    std::vector<MetricValues> metrics[2];
    StateDict states[2];
    for (const bool interrupts : {false, true}) {
      const LoopOptions loop = {.max_epochs = 3, .val_interval = 2};
      const auto note = [&](const std::string& point, TrainContext& c) {
        if (point == "after_val_epoch") metrics[interrupts].push_back(c.evaluation.metrics);
        if (interrupts && point == moment && c.progress.step == 6) c.control.interrupt("later");
      };
      const auto first = trainer_for(mode(), loop);
      add_hook(*first, note);
      first->train(*loader(12), loader(6, 5, false).get());
      states[interrupts] = first->state_dict();
      if (!interrupts) continue;
      ASSERT_EQ(first->outcome(), RunOutcome::kInterrupted) << moment;
      const StateDict saved = first->state_dict();  // before the next trainer seeds the generators
      const auto second = trainer_for(mode() == "eager" ? "graph" : "eager", loop);
      add_hook(*second, [&](const std::string& point, TrainContext& c) {
        if (point == "after_val_epoch") metrics[1].push_back(c.evaluation.metrics);
      });
      second->load_state_dict(saved);
      second->train(*loader(12), loader(6, 5, false).get());
      EXPECT_EQ(second->outcome(), RunOutcome::kFinished);
      states[1] = second->state_dict();
    }
    EXPECT_EQ(metrics[0], metrics[1]) << moment;
    expect_same_state(states[0], states[1]);
  }
}

TEST_P(TrainerEnd, LimitsCountMicroBatches) {
  const auto trainer = trainer_for(mode(), {.max_epochs = 2,
                                            .accumulate = 2,
                                            .limit_train_batches = 3,
                                            .limit_val_batches = 2,
                                            .limit_test_batches = 1,
                                            .limit_predict_batches = 3});
  std::map<std::string, int> counts;
  add_hook(*trainer, [&](const std::string& point, TrainContext& c) {
    ++counts[point];
    if (point == "before_train_iter") counts["micro-batches"] += static_cast<int>(c.step.micro_batches->batches.size());
  });
  const auto data = loader(12);
  trainer->train(*data, loader(8).get());
  trainer->test(*loader(8));
  trainer->predict(*loader(8));
  EXPECT_EQ(counts["before_train_iter"], 4);
  EXPECT_EQ(counts["micro-batches"], 6);
  EXPECT_EQ(counts["before_val_iter"], 4);
  EXPECT_EQ(counts["before_test_iter"], 1);
  EXPECT_EQ(counts["before_predict_iter"], 3);
}

TEST_P(TrainerEnd, ValidationComesByEpochsByStepsAndAfterTheLastStep) {
  const auto validated = [&](LoopOptions loop) {
    std::vector<int64_t> steps;
    const auto trainer = trainer_for(mode(), loop);
    add_hook(*trainer, [&](const std::string& point, TrainContext& c) {
      if (point == "before_val") steps.push_back(c.progress.step);
    });
    trainer->train(*loader(6), loader(2).get());  // 3 steps per epoch
    return steps;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(validated({.max_epochs = 3}), (Steps{3, 6, 9}));
  EXPECT_EQ(validated({.max_epochs = 5, .val_interval = 2, .val_by_epoch = true}), (Steps{6, 12}));
  EXPECT_EQ(validated({.max_epochs = 3, .val_interval = 4}), (Steps{4, 8, 9}));
  EXPECT_EQ(validated({.max_steps = 7, .val_interval = 4}), (Steps{4, 7}));
  EXPECT_EQ(validated({.max_steps = 2}), Steps{2}) << "within an epoch, at whose end it was to be";
}

TEST_P(TrainerEnd, AHookMayAskForAValidation) {
  std::vector<int64_t> steps;
  const auto trainer = trainer_for(mode(), {.max_epochs = 2});
  add_hook(*trainer, [&](const std::string& point, TrainContext& c) {
    if (point == "before_val") steps.push_back(c.progress.step);
    // Of step 3 the epoch's end asks too, and nobody twice.
    if (point == "after_train_iter" && c.progress.step != 4) c.control.request_validation();
  });
  trainer->train(*loader(6), loader(2).get());
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 5, 6}));
}

TEST_P(TrainerEnd, MetricsAreToldApartByPrefixes) {
  const auto trainer = trainer_for(mode(), {.max_steps = 1});
  trainer->add_metric(std::make_unique<Accuracy>());
  trainer->add_metric(std::make_unique<Accuracy>(), "second");
  const MetricValues values = trainer->validate(*loader(4));
  EXPECT_EQ(values.count("accuracy") + values.count("second/accuracy") + values.count("loss"), 3U);
  const auto second_first = trainer_for(mode(), {.max_steps = 1});
  std::string first = "none";
  add_hook(*second_first, [&](const std::string& point, TrainContext& c) {
    if (point == "after_val_epoch") first = c.evaluation.first_metric;
  });
  second_first->validate(*loader(4));
  EXPECT_EQ(first, "");
  second_first->add_metric(std::make_unique<Accuracy>(), "second");
  second_first->add_metric(std::make_unique<Accuracy>());
  second_first->validate(*loader(4));
  EXPECT_EQ(first, "second/accuracy");
  trainer->add_metric(std::make_unique<Accuracy>());
  expect_error<ConfigError>([&] { trainer->validate(*loader(4)); }, {"two metrics report 'accuracy'", "prefix"});
}

// The steps that ran, by how many were finished before each. `ask` may have the run go back.
std::vector<int64_t> steps_of(BaseTrainer& trainer, const Act& ask) {
  std::vector<int64_t> steps;
  trainer.add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 1}));
  add_hook(trainer, [&](const std::string& point, TrainContext& c) {
    if (point == "before_train_iter") steps.push_back(c.progress.step);
    ask(point, c);
  });
  trainer.train(*loader(8), loader(4).get());
  return steps;
}

TEST_P(TrainerEnd, GoesBackToBeforeTheEarliestOfSeveralBadSteps) {
  for (const int64_t first : {2, 4}) {
    const TempDir folder;
    const auto trainer = trainer_for(mode(), {.max_steps = 4, .val_interval = 4}, "AdamW", folder.path().string());
    bool is_asked = false;
    const auto steps = steps_of(*trainer, [&](const std::string& point, TrainContext& c) {
      if (point != "after_train_iter" || c.progress.step != 4 || std::exchange(is_asked, true)) return;
      for (const int64_t bad_step : {first, 6 - first}) c.control.request_rollback("planted", bad_step);
    });
    EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2, 3, 1, 2, 3})) << first;
  }
}

// A save of what was validated may have asked for it: no step comes before, in the next epoch or after the last one.
TEST_P(TrainerEnd, GoesBackAtTheEndOfAnEpochBeforeTheNextStep) {
  for (const int64_t epoch : {1, 2}) {
    const TempDir folder;
    const auto trainer = trainer_for(mode(), {.max_epochs = 2, .val_interval = 1, .val_by_epoch = true}, "AdamW",
                                     folder.path().string());
    const auto steps = steps_of(*trainer, [&](const std::string& point, TrainContext& c) {
      if (point == "after_val" && c.progress.step == 4 * epoch) c.control.request_rollback("planted", 4 * epoch);
    });
    EXPECT_EQ(trainer->outcome(), RunOutcome::kFinished);
    EXPECT_EQ(trainer->progress().step, 7);
    const auto expected =
        epoch == 1 ? std::vector<int64_t>{0, 1, 2, 3, 3, 4, 5, 6} : std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7};
    EXPECT_EQ(steps, expected);
  }
}

TEST_P(TrainerEnd, ASignalInterruptsAndTheHandlersComeBack) {
  struct sigaction before{};
  sigaction(SIGTERM, nullptr, &before);
  for (const int signal : {SIGTERM, SIGUSR1, SIGXCPU}) {
    const auto trainer = trainer_for(mode(), {.max_steps = 10});
    trainer->add_hook(std::make_unique<StopSignalHook>());
    add_hook(*trainer, [&](const std::string& point, TrainContext& c) {
      if (point == "after_backward" && c.progress.step == 3) std::raise(signal);
    });
    trainer->train(*loader(30));
    EXPECT_EQ(trainer->outcome(), RunOutcome::kInterrupted);
    EXPECT_EQ(trainer->progress().step, 4) << "the step is finished first";
    EXPECT_THAT(trainer->stop_reason(), ::testing::HasSubstr(StopSignals::name(signal)));
    trainer->train(*loader(30));  // the signal belonged to the run before
    EXPECT_EQ(trainer->outcome(), RunOutcome::kFinished);
  }
  struct sigaction after{};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

// As a batch system sends them.
TEST(StopSignals, TheFirstOfSeveralCounts) {
  const StopSignals signals;
  EXPECT_EQ(StopSignals::received(), 0);
  for (const int signal : {SIGUSR1, SIGTERM, SIGTERM, SIGHUP, SIGINT}) std::raise(signal);
  EXPECT_EQ(StopSignals::received(), SIGUSR1);
}

TEST(StopSignalsDeathTest, ASecondInterruptEndsTheProcessAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignals signals;
        for (const int signal : {SIGINT, SIGTERM, SIGINT}) std::raise(signal);
      },
      ::testing::ExitedWithCode(128 + SIGINT), "");
}

DUET_IN_BOTH_MODES(TrainerEnd);

}  // namespace
}  // namespace duet
