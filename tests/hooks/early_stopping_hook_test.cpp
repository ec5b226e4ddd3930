#include "hooks/early_stopping_hook.h"
#include <limits>
#include <gmock/gmock.h>
#include "core/hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/loop_runs.h"

namespace duet {
namespace {

using ::testing::HasSubstr;

EarlyStoppingHookOptions watching(const std::string& monitor, int64_t patience = 3, double min_delta = 0) {
  EarlyStoppingHookOptions options;
  options.monitor = monitor;
  options.patience = patience;
  options.min_delta = min_delta;
  return options;
}

// Validations with these values; how many there were when training was to end, 0: it goes on.
std::size_t validations_until_stop(const EarlyStoppingHookOptions& options, const std::vector<double>& values,
                                   std::string* reason = nullptr) {
  FakeRun run;
  run.context.control.outcome = RunOutcome::kRunning;
  EarlyStoppingHook hook(options);
  for (std::size_t i = 0; i < values.size(); ++i) {
    run.validation(hook, {{options.monitor, values[i]}});
    if (run.context.control.stop_reason.empty()) continue;
    if (reason != nullptr) *reason = run.context.control.stop_reason;
    return i + 1;
  }
  return 0;
}

TEST(EarlyStoppingHook, StopsAfterPatienceValidationsWithoutImprovement) {
  std::string reason;
  EXPECT_EQ(validations_until_stop(watching("accuracy"), {0.5, 0.625, 0.5, 0.25, 0.5, 0.75}, &reason), 5U);
  EXPECT_THAT(reason, HasSubstr("early stopping: accuracy 0.5 is validation 3 without improvement"));
  EXPECT_THAT(reason, HasSubstr("the best was 0.625"));
}

TEST(EarlyStoppingHook, StartsCountingAgainWithEveryImprovement) {
  EXPECT_EQ(validations_until_stop(watching("accuracy"), {0.5, 0.25, 0.25, 0.625, 0.5, 0.5, 0.75, 0.5, 0.5}), 0U);
  EXPECT_EQ(validations_until_stop(watching("accuracy", 1), {0.5, 0.625, 0.625}), 3U);
}

TEST(EarlyStoppingHook, LooksForLessOfALoss) {
  EXPECT_EQ(validations_until_stop(watching("loss", 2), {4, 3, 2, 1, 2, 1}), 6U);
  EarlyStoppingHookOptions speed = watching("speed", 2);
  speed.rule = "less";
  EXPECT_EQ(validations_until_stop(speed, {4, 5, 6}), 3U);
}

// mmengine: no improvement if best + delta > value.
TEST(EarlyStoppingHook, CountsAGainOfExactlyMinDeltaAsImprovement) {
  EXPECT_EQ(validations_until_stop(watching("accuracy", 1, 0.125), {0.5, 0.625, 0.75}), 0U);
  EXPECT_EQ(validations_until_stop(watching("accuracy", 1, 0.125), {0.5, 0.609375}), 2U);
  EXPECT_EQ(validations_until_stop(watching("loss", 1, 0.125), {0.5, 0.375, 0.25}), 0U);
  EXPECT_EQ(validations_until_stop(watching("loss", 1, 0.125), {0.5, 0.390625}), 2U);
}

TEST(EarlyStoppingHook, DoesNotCountATieWithoutMinDelta) {
  EXPECT_EQ(validations_until_stop(watching("accuracy", 2), {0.5, 0.5, 0.5}), 3U);
}

TEST(EarlyStoppingHook, StopsAtOnceIfTheMetricIsNotFinite) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const double bad : {std::nan(""), kInf, -kInf}) {
    std::string reason;
    EXPECT_EQ(validations_until_stop(watching("accuracy", 9), {0.5, bad}, &reason), 2U);
    EXPECT_THAT(reason, HasSubstr("is not finite"));
    EarlyStoppingHookOptions unchecked = watching("accuracy", 2);
    unchecked.check_finite = false;
    EXPECT_EQ(validations_until_stop(unchecked, {0.5, bad, bad}), 3U);
    EXPECT_EQ(validations_until_stop(unchecked, {bad, 0.5, bad, 0.625}), 0U);
  }
}

TEST(EarlyStoppingHook, StopsBeyondAThreshold) {
  EarlyStoppingHookOptions good = watching("accuracy", 9);
  good.stopping_threshold = 0.75;
  std::string reason;
  EXPECT_EQ(validations_until_stop(good, {0.5, 0.75, 0.875}, &reason), 3U);
  EXPECT_THAT(reason, HasSubstr("accuracy 0.875 is above the stopping_threshold 0.75"));
  EarlyStoppingHookOptions hopeless = watching("loss", 9);
  hopeless.divergence_threshold = 4;
  EXPECT_EQ(validations_until_stop(hopeless, {2, 4, 5}, &reason), 3U);
  EXPECT_THAT(reason, HasSubstr("loss 5 is above the divergence_threshold 4"));
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
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) run.validation(patient, {{"accuracy", 0.5}});
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("'top_acuracy'"));
  EXPECT_EQ(log.find("top_acuracy"), log.rfind("top_acuracy")) << "warned more than once";
  EXPECT_EQ(run.context.control.stop_reason, "");
}

TEST(EarlyStoppingHook, LeavesValidationsOutsideOfTrainingAlone) {
  FakeRun run;
  EarlyStoppingHook hook(watching("accuracy", 1));
  for (int i = 0; i < 3; ++i) run.validation(hook, {{"accuracy", 0.5}});
  EXPECT_EQ(run.context.control.stop_reason, "");
  EXPECT_EQ(hook.best(), std::nullopt);
}

TEST(EarlyStoppingHook, RefusesOptionsOutOfRange) {
  const auto refuse = [](const char* part, const std::function<void(EarlyStoppingHookOptions&)>& change) {
    EarlyStoppingHookOptions options = watching("accuracy");
    change(options);
    expect_error<ConfigError>([&] { EarlyStoppingHook hook(options); }, {"[EarlyStoppingHook]", part});
  };
  refuse("monitor", [](auto& o) { o.monitor = ""; });
  refuse("speed", [](auto& o) { o.monitor = "speed"; });
  refuse("rule is 'more'", [](auto& o) { o.rule = "more"; });
  refuse("min_delta is -0.1", [](auto& o) { o.min_delta = -0.1; });
  refuse("min_delta", [](auto& o) { o.min_delta = std::nan(""); });
  refuse("patience is 0", [](auto& o) { o.patience = 0; });
  refuse("threshold", [](auto& o) { o.stopping_threshold = std::nan(""); });
}

TEST(EarlyStoppingHook, BeginsAnewWithTheStateOfAnotherMetric) {
  FakeRun run;
  run.context.control.outcome = RunOutcome::kRunning;
  EarlyStoppingHook of_loss(watching("loss")), of_accuracy(watching("accuracy")), same(watching("loss"));
  for (const double loss : {1.0, 2.0, 3.0}) run.validation(of_loss, {{"loss", loss}});
  of_accuracy.load_state_dict(of_loss.state_dict());
  EXPECT_EQ(of_accuracy.validations_without_improvement(), 0);
  EXPECT_EQ(of_accuracy.best(), std::nullopt);
  same.load_state_dict(of_loss.state_dict());
  EXPECT_EQ(same.validations_without_improvement(), 2);
  EXPECT_EQ(same.best(), 1.0);
}

class EarlyStopping : public ::testing::TestWithParam<const char*> {
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

TEST_P(EarlyStopping, EndsARun) {
  const auto whole = trainer(100);
  train(*whole);
  EXPECT_EQ(whole->progress().step, 15);
  EXPECT_EQ(whole->outcome(), RunOutcome::kStopped);
  EXPECT_THAT(whole->stop_reason(), HasSubstr("score/acc"));
}

TEST_P(EarlyStopping, GoesOnInTheMiddleOfItsPatience) {
  const auto whole = trainer(100);
  train(*whole);
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

INSTANTIATE_TEST_SUITE_P(Modes, EarlyStopping, ::testing::Values("eager", "graph"));

}  // namespace
}  // namespace duet
