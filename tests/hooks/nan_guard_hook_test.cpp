#include "hooks/nan_guard_hook.h"
#include <filesystem>
#include <limits>
#include <map>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/ema_hook.h"
#include "tests/hooks/nan_guard_runs.h"
#include "tests/support/called_ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/loop_runs.h"
#include "tests/support/sample_state.h"

namespace duet {
namespace {

using ::testing::HasSubstr;
using testing::mlp_task;

TEST_P(NaNGuard, NamesTheStepThatWasTheFirstAndWhatIsNotFinite) {
  for (const double bad : {kInf, std::nan("")}) {
    const auto trainer = make({.interval = 4});
    expect_error<NonFiniteError>([&] { steps(*trainer, 20, bad); }, {"at step 6, looked at after step 8", "'loss'",
                                                                     "weights from 'a.weight' on", "non_finite: skip"});
    EXPECT_EQ(trainer->progress().step, 8);
    EXPECT_EQ(trainer->outcome(), RunOutcome::kFailed);
  }
  const auto late = make({.interval = 100});
  steps(*late, 7);
  expect_error<NonFiniteError>([&] { late->finish(); }, {"at step 6, looked at after step 7"});
}

TEST_P(NaNGuard, CanStopInsteadOrWarn) {
  const auto stopped = make({.interval = 4, .action = "stop"});
  steps(*stopped, 8);
  EXPECT_THAT(stopped->stop_reason(), HasSubstr("step 6 was not finite"));

  const auto warned = make({.interval = 4, .action = "warn"});
  const std::string log = testing::stderr_of([&] {
    steps(*warned, 15);
    warned->finish();
  });
  EXPECT_THAT(log, HasSubstr("at step 6, looked at after step 8"));
  EXPECT_THAT(log, HasSubstr("at step 9, looked at after step 12"));  // the weights stay bad
  EXPECT_EQ(warned->stop_reason(), "");
  EXPECT_EQ(warned->progress().step, 15);
}

TEST_P(NaNGuard, AddsNoOperatorBetweenTwoLooks) {
  const auto guarded = make({.interval = 5}, {}, 0), plain = make_plain({}, 0);
  for (int n = 1; n <= 20; ++n) {
    const auto operators_of = [](BaseTrainer& trainer) {
      const testing::CalledOps called;
      step(trainer, 1.0);
      int operators = 0;
      for (const auto& [name, count] : testing::CalledOps::counts()) operators += count;
      return operators;
    };
    const int of_guarded = operators_of(*guarded), of_plain = operators_of(*plain);
    if (n % 5 == 0) {
      EXPECT_GT(of_guarded, of_plain) << "step " << n;
    } else {
      EXPECT_EQ(of_guarded, of_plain) << "step " << n;
    }
  }
}

// Whatever the guard does about it; a run that it stops is none that failed.
TEST_P(NaNGuard, SavesNoStateThatIsNotFinite) {
  for (const std::string action : {"raise", "stop", "warn"}) {
    SCOPED_TRACE(action);
    std::filesystem::remove_all(folder_ / "checkpoints");
    const auto trainer = make({.interval = 100, .action = action});
    trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 2}));
    const auto train = [&] {
      while (trainer->progress().step < 9 && trainer->stop_reason().empty()) step(*trainer);
      trainer->finish();
    };
    const std::string log = testing::stderr_of([&] {
      action == "raise" ? expect_error<NonFiniteError>(train, {"not finite at step 6, looked at after step 6",
                                                               "weights from 'a.weight' on", "the last checkpoint"})
                        : train();
    });
    EXPECT_EQ(trainer->progress().step, action == "warn" ? 9 : 6);
    const std::map<std::string, RunOutcome> outcomes = {
        {"raise", RunOutcome::kFailed}, {"stop", RunOutcome::kDiverged}, {"warn", RunOutcome::kFinished}};
    EXPECT_EQ(trainer->outcome(), outcomes.at(action));
    EXPECT_EQ(checkpoints(), (std::vector<std::string>{"step-2", "step-4"}));
    if (action != "warn") continue;
    EXPECT_THAT(log, HasSubstr("no checkpoint of step 9"));
    expect_error<SaveRefused>([&] { trainer->save(folder_.path().string()); }, {"[NaNGuardHook]", "after step 9"});
  }
}

// An infinite second moment freezes its weight, and every loss looks well.
TEST_P(NaNGuard, SavesNoStateOfTheOptimizerNorAverageThatIsNotFinite) {
  const auto trainer = make({.interval = 100});
  trainer->add_hook(std::make_unique<EMAHook>(EMAHookOptions{.evaluate_on_ema = false}));
  steps(*trainer, 3, 1.0);
  const StateDict good = copy_of(trainer->state_dict());
  trainer->save(folder_ / "saved");
  spoil(*trainer, "exp_avg_sq");
  expect_error<NonFiniteError>([&] { trainer->save(folder_ / "saved"); },
                               {"the optimizer state '", "exp_avg_sq", "not finite after step 3"});
  trainer->load_state_dict(good);
  spoil(*trainer, "ema.weights.a.weight");
  expect_error<NonFiniteError>([&] { trainer->save(folder_ / "saved"); }, {"the average 'ema.weights.a.weight'"});
}

// By a rule that is a guard's own: finite weights that nobody would go on from.
TEST_P(NaNGuard, KeepsNoCheckpointOfARunThatDiverged) {
  const auto trainer = make({.interval = 1, .spike_threshold = 20, .spike_window = 10, .spike_action = "stop"});
  trainer->add_hook(std::make_unique<CheckpointHook>(
      CheckpointHookOptions{.interval = 16, .max_keep = 1, .published_keys = {"model"}}));
  Batch batch = mlp_task().batch(8, 1);
  while (trainer->progress().step < 31) trainer->step(batch);
  batch.set("input", batch["input"] * 1e4);
  trainer->step(batch);  // whose end a checkpoint is due at
  EXPECT_THAT(trainer->stop_reason(), HasSubstr("the loss of step 32 was a spike"));
  trainer->finish();
  EXPECT_EQ(trainer->outcome(), RunOutcome::kDiverged);
  EXPECT_EQ(checkpoints(), std::vector<std::string>{CheckpointStore::folder_name(16)});
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "published"));
}

// Found after the last step: the hooks that come after the guard see a run that failed.
TEST_P(NaNGuard, KeepsNothingOfARunThatItFindsDivergedAtItsEnd) {
  const TrainerOptions options = skipping();
  for (const std::string action : {"raise", "stop"}) {
    const auto trainer = make({.interval = 100, .action = action, .max_consecutive_skips = 0}, options);
    trainer->add_hook(std::make_unique<CheckpointHook>());
    std::string outcome;
    trainer->on(HookPoint::kAfterTrain, [&](TrainContext& run) { outcome = to_string(run.control.outcome); });
    while (trainer->progress().step < 25) trainer->step(bad_batch());
    if (action == "raise") {
      expect_error<NonFiniteError>([&] { trainer->finish(); }, {"none of the 25 steps of this run changed a weight"});
    } else {
      trainer->finish();
    }
    EXPECT_EQ(outcome, action == "raise" ? "failed" : "diverged");
    EXPECT_EQ(checkpoints(), std::vector<std::string>{});
  }
}

// Weights that something has ruined after a finite loss: known before the log says how the run has ended.
TEST_P(NaNGuard, LooksAtTheWeightsBeforeOthersHearOfTheEnd) {
  const auto trainer = make({.interval = 100});
  std::string outcome;
  trainer->on(HookPoint::kAfterTrain, [&](TrainContext& run) { outcome = to_string(run.control.outcome); });
  step(*trainer, 1.0);
  spoil(*trainer, "a.weight");
  expect_error<NonFiniteError>([&] { trainer->finish(); }, {"not finite after step 1", "a.weight"});
  EXPECT_EQ(outcome, "failed");
}

TEST_P(NaNGuard, EndsARunWhoseStepsAreAllSkipped) {
  const TrainerOptions options = skipping();
  const auto trainer = make({.interval = 4, .max_consecutive_skips = 6}, options);
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 2}));
  while (trainer->progress().step < 3) step(*trainer, 1.0);
  expect_error<NonFiniteError>(
      [&] {
        while (trainer->progress().step < 50) trainer->step(bad_batch());
      },
      {"none of the last 6 steps up to step 10", "max_consecutive_skips 6", "the last checkpoint", "step-8"});

  // With one good step among them the run is one that trains.
  const auto few = make({.interval = 4, .max_consecutive_skips = 6}, options);
  for (int i = 0; i < 40; ++i) i % 4 == 0 ? step(*few, 1.0) : void(few->step(bad_batch()));
  few->finish();
  EXPECT_EQ(few->outcome(), RunOutcome::kFinished);
}

TEST_P(NaNGuard, EndsARunWhoseLossScaleFalls) {
  TrainerOptions options;
  options.loss_scale = LossScaleOptions{.init_scale = 16.0};
  const auto trainer = make({.interval = 5, .max_consecutive_skips = 0, .min_loss_scale = 0.01}, options);
  expect_error<NonFiniteError>(
      [&] {
        while (trainer->progress().step < 50) trainer->step(bad_batch());
      },
      {"the loss scale at", "after step 15", "min_loss_scale 0.01"});
}

TEST_P(NaNGuard, TellsHowManyStepsWereSkipped) {
  const TrainerOptions options = skipping();
  const auto trainer = make({}, options), plain = make({});
  double skipped = -1, of_plain = -1;
  trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& run) { skipped = run.log.gauges().at("skipped_steps")(); });
  plain->on(HookPoint::kAfterTrainIter, [&](TrainContext& run) { of_plain = run.log.gauges().at("skipped_steps")(); });
  steps(*trainer, 5);
  EXPECT_EQ(skipped, 0);
  steps(*trainer, 9);
  EXPECT_EQ(skipped, 1);
  steps(*plain, 5);
  EXPECT_TRUE(std::isnan(of_plain)) << "nothing to say";
}

TEST_P(NaNGuard, FindsALossThatIsASpike) {
  const auto run = [&](const std::string& action) {
    auto trainer = make({.interval = 5, .spike_threshold = 8, .spike_window = 20, .spike_action = action});
    for (int64_t i = 0; i < 30; ++i) {
      Batch batch = mlp_task().batch(64, static_cast<uint64_t>(i));
      if (i == 27) batch.set("input", batch["input"] * 1000);
      trainer->step(batch);
    }
    return trainer;
  };
  EXPECT_THAT(testing::stderr_of([&] { EXPECT_EQ(run("warn")->stop_reason(), ""); }),
              HasSubstr("at step 28, looked at after step 30"));
  EXPECT_EQ(run("stop")->stop_reason(), "the loss of step 28 was a spike");
  expect_error<NonFiniteError>([&] { run("raise"); }, {"at step 28", "spike_threshold 8"});
}

DUET_IN_BOTH_MODES(NaNGuard);

class MaskedTask : public FakeTask {
 public:
  NamedTensors named_buffers() const override { return {{"mask", buffer}, {"count", at::zeros({}, at::kLong)}}; }
  at::Tensor buffer = at::full({2}, -std::numeric_limits<float>::infinity());
};

TEST(NaNGuardHook, AllowsInfinitiesInBuffersButNoNaN) {
  MaskedTask task;
  FakeRun run;
  TrainContext context{task, run.hyper_parameters, run.state, "eager", ""};
  NaNGuardHook hook({.action = "stop"});
  hook.before_save_checkpoint(context);
  task.buffer[1] = std::nan("");
  expect_error<SaveRefused>([&] { hook.before_save_checkpoint(context); }, {"the buffer 'mask'"});
}

}  // namespace
}  // namespace duet
