#include "hooks/early_stopping_hook.h"
#include <limits>
#include <gmock/gmock.h>
#include "core/hook.h"
#include "hooks/checkpoint_hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

EarlyStoppingHookOptions watching(const std::string& monitor, int64_t patience = 3) {
  return {.monitor = monitor, .patience = patience};
}

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

struct Course {
  EarlyStoppingHookOptions options;
  std::vector<double> values;  // of one validation after another
  std::size_t stops_after;     // 0: it goes on
  std::string reason{};        // part of it
};

const std::vector<Course>& courses() {
  static const std::vector<Course> all = {
      {{.monitor = "accuracy", .patience = 3},
       {0.5, 0.625, 0.5, 0.25, 0.5, 0.75},
       5,
       "accuracy 0.5 is validation 3 without improvement, the best was 0.625"},
      {{.monitor = "accuracy", .patience = 3}, {0.5, 0.25, 0.25, 0.625, 0.5, 0.5, 0.75, 0.5, 0.5}, 0},
      {{.monitor = "accuracy", .patience = 1}, {0.5, 0.625, 0.625}, 3},
      {{.monitor = "loss", .patience = 2}, {4, 3, 2, 1, 2, 1}, 6},
      {{.monitor = "speed", .rule = "less", .patience = 2}, {4, 5, 6}, 3},
      // A gain of exactly min_delta is one, as mmengine has it; a tie without min_delta is none.
      {{.monitor = "accuracy", .min_delta = 0.125, .patience = 1}, {0.5, 0.625, 0.75}, 0},
      {{.monitor = "accuracy", .min_delta = 0.125, .patience = 1}, {0.5, 0.609375}, 2},
      {{.monitor = "loss", .min_delta = 0.125, .patience = 1}, {0.5, 0.375, 0.25}, 0},
      {{.monitor = "loss", .min_delta = 0.125, .patience = 1}, {0.5, 0.390625}, 2},
      {{.monitor = "accuracy", .patience = 2}, {0.5, 0.5, 0.5}, 3},
      {{.monitor = "accuracy", .patience = 9}, {0.5, kNaN}, 2, "is not finite"},
      {{.monitor = "accuracy", .patience = 9}, {0.5, -kInf}, 2, "is not finite"},
      {{.monitor = "accuracy", .patience = 2, .check_finite = false}, {0.5, kInf, kNaN}, 3},
      {{.monitor = "accuracy", .patience = 2, .check_finite = false}, {kNaN, 0.5, kNaN, 0.625}, 0},
      {{.monitor = "accuracy", .patience = 9, .stopping_threshold = 0.75},
       {0.5, 0.75, 0.875},
       3,
       "accuracy 0.875 is above the stopping_threshold 0.75"},
      {{.monitor = "loss", .patience = 9, .divergence_threshold = 4},
       {2, 4, 5},
       3,
       "loss 5 is above the divergence_threshold 4"}};
  return all;
}

TEST(EarlyStoppingHook, StopsWhenItsRuleSaysSo) {
  for (const Course& course : courses()) {
    SCOPED_TRACE(course.options.monitor + ::testing::PrintToString(course.values));
    FakeRun run;
    run.context.control.outcome = RunOutcome::kRunning;
    EarlyStoppingHook hook(course.options);
    const std::string& reason = run.context.control.stop_reason;
    std::size_t done = 0;
    while (done < course.values.size() && reason.empty())
      run.validation(hook, {{course.options.monitor, course.values[done++]}});
    EXPECT_EQ(reason.empty() ? 0 : done, course.stops_after);
    EXPECT_THAT(reason, HasSubstr(course.reason));
  }
}

TEST(EarlyStoppingHook, NamesTheMetricsThereAreIfTheMonitorIsMisspelt) {
  FakeRun run;
  run.context.control.outcome = RunOutcome::kRunning;
  EarlyStoppingHook hook(watching("top_acuracy"));
  expect_error<ConfigError>([&] { run.validation(hook, {{"accuracy", 0.5}, {"loss", 1}}); },
                            {"'top_acuracy'", "accuracy, loss"});
  EarlyStoppingHookOptions lenient = watching("top_acuracy", 1);
  lenient.strict = false;
  EarlyStoppingHook patient(lenient);
  const std::string log = testing::stderr_of([&] {
    for (int i = 0; i < 3; ++i) run.validation(patient, {{"accuracy", 0.5}});
  });
  EXPECT_THAT(log, HasSubstr("'top_acuracy'"));
  EXPECT_EQ(log.find("top_acuracy"), log.rfind("top_acuracy")) << "warned more than once";
  EXPECT_EQ(run.context.control.stop_reason, "");
}

TEST(EarlyStoppingHook, LeavesValidationsOutsideOfTrainingAlone) {
  FakeRun run;
  EarlyStoppingHook hook(watching("accuracy", 1));
  for (int i = 0; i < 3; ++i) run.validation(hook, {{"accuracy", 0.5}});
  EXPECT_EQ(run.context.control.stop_reason, "");
  EXPECT_FALSE(hook.state_dict().has("best"));
}

TEST(EarlyStoppingHook, BeginsAnewWithTheStateOfAnotherMetric) {
  expect_error<ConfigError>([] { EarlyStoppingHook hook({.monitor = "speed"}); }, {"speed", "set rule"});
  FakeRun run;
  run.context.control.outcome = RunOutcome::kRunning;
  EarlyStoppingHook of_loss(watching("loss")), of_accuracy(watching("accuracy")), same(watching("loss"));
  for (const double loss : {1.0, 2.0, 3.0}) run.validation(of_loss, {{"loss", loss}});
  for (EarlyStoppingHook* other : {&of_accuracy, &same}) other->load_state_dict(of_loss.state_dict());
  EXPECT_EQ(of_accuracy.state_dict().integer("waited"), 0);
  EXPECT_FALSE(of_accuracy.state_dict().has("best"));
  EXPECT_EQ(same.state_dict().integer("waited"), 2);
  EXPECT_EQ(same.state_dict().number("best"), 1.0);
}

class EarlyStopping : public testing::InBothModes {
 protected:
  // Three steps an epoch, a validation after each; the score is best after the second epoch.
  static std::unique_ptr<BaseTrainer> trainer(int64_t max_steps) {
    LoopOptions loop;
    loop.max_steps = max_steps;
    auto trainer = testing::trainer_for(GetParam(), loop);
    trainer->add_hook(std::make_unique<EarlyStoppingHook>(watching("score/acc")));
    auto score = std::make_unique<CallbackHook>("score");
    score->on(HookPoint::kAfterValEpoch, [](TrainContext& context) {
      context.evaluation.metrics["score/acc"] =
          context.progress.epoch == 2 ? 0.75 : 0.5 + 0.0625 * static_cast<double>(context.progress.epoch % 2);
    });
    trainer->add_hook(std::move(score));
    return trainer;
  }
  static void train(BaseTrainer& trainer) { trainer.train(*testing::loader(6), testing::loader(2, 5, false).get()); }
};

TEST_P(EarlyStopping, EndsARunAlsoWhereItGoesOnInTheMiddleOfItsPatience) {
  const auto whole = trainer(100);
  train(*whole);
  EXPECT_EQ(whole->progress().step, 15);
  EXPECT_EQ(whole->outcome(), RunOutcome::kStopped);
  const auto first = trainer(12);
  train(*first);
  EXPECT_EQ(first->stop_reason(), "");
  const StateDict saved = first->state_dict();  // with the default generator, which the next trainer seeds anew
  const auto second = trainer(100);
  second->load_state_dict(saved);
  train(*second);
  EXPECT_EQ(second->progress().step, whole->progress().step);
  EXPECT_EQ(second->stop_reason(), whole->stop_reason());
  testing::expect_same_bits(second->weights(), whole->weights());
}

TEST_P(EarlyStopping, AndAllElseThatWatchesValidationsWarnsOfATrainingWithoutOne) {
  const TempDir folder;
  LoopOptions loop;
  loop.max_steps = 3;
  const auto trainer =
      testing::trainer_for(GetParam(), loop, "SGD", folder.path(), {ReduceOnPlateau{.monitor = "loss"}});
  trainer->add_hook(std::make_unique<EarlyStoppingHook>(watching("loss")));
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.save_best = {"loss"}}));
  const std::string without = testing::stderr_of([&] { trainer->train(*testing::loader(6)); });
  for (const char* what : {"[EarlyStoppingHook] monitor 'loss'", "[CheckpointHook] save_best",
                           "[ParamSchedulerHook] monitor 'loss' of ReduceOnPlateau"}) {
    EXPECT_THAT(without, HasSubstr(std::string(what) + " has no effect without validation data"));
  }
  const std::string own_loop = testing::stderr_of([&] { trainer->step(testing::mlp_batch(1)); });
  EXPECT_THAT(own_loop, Not(HasSubstr("no effect"))) << "which may validate";
}

DUET_IN_BOTH_MODES(EarlyStopping);

}  // namespace
}  // namespace duet
