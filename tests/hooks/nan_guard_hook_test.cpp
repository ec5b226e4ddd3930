#include "hooks/nan_guard_hook.h"
#include <algorithm>
#include <filesystem>
#include <limits>
#include <ATen/TensorOperators.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/loop_runs.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using ::testing::HasSubstr;
using testing::mlp_task;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kBad = 6;  // the step whose batch is not finite

// Operators that this thread calls while it lives.
class CountOperators {
 public:
  CountOperators() {
    count = 0;
    callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_op).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountOperators() { at::removeCallback(callback_); }
  static int count;

 private:
  static std::unique_ptr<at::ObserverContext> on_op(const at::RecordFunction&) {
    ++count;
    return nullptr;
  }
  at::CallbackHandle callback_;
};
int CountOperators::count = 0;

class NaNGuard : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<BaseTrainer> make_plain(TrainerOptions options = {}, int64_t verify_interval = 2) {
    GraphOptions graph;
    graph.fallback = Fallback::kStrict;
    graph.verify_interval = verify_interval;
    options.work_dir = folder_.path().string();
    seed_all(3);
    return testing::make_trainer(GetParam(), mlp_task().make(), options, graph);
  }
  std::unique_ptr<BaseTrainer> make(const NaNGuardHookOptions& options, const TrainerOptions& trainer_options = {},
                                    int64_t verify_interval = 2) {
    auto trainer = make_plain(trainer_options, verify_interval);
    trainer->add_hook(std::make_unique<NaNGuardHook>(options));
    return trainer;
  }

  static void step(BaseTrainer& trainer, double bad = kInf) {
    Batch batch = mlp_task().batch(8, static_cast<uint64_t>(trainer.progress().step));
    if (trainer.progress().step + 1 == kBad) batch["input"][3][2] = bad;
    trainer.step(batch);
  }
  static void steps(BaseTrainer& trainer, int64_t until, double bad = kInf) {
    while (trainer.progress().step < until) step(trainer, bad);
  }
  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(CheckpointStore::root_of(folder_.path().string()))) {
      if (entry.is_directory()) names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempDir folder_;
};

TEST_P(NaNGuard, NamesTheStepThatWasTheFirstAndWhatIsNotFinite) {
  for (const double bad : {kInf, std::nan("")}) {
    const auto trainer = make({.interval = 4});
    expect_error<NonFiniteError>([&] { steps(*trainer, 20, bad); }, {"at step 6, looked at after step 8", "'loss'",
                                                                     "weights from 'a.weight' on", "non_finite: skip"});
    EXPECT_EQ(trainer->progress().step, 8);
    EXPECT_EQ(trainer->outcome(), RunOutcome::kFailed);
  }
}

TEST_P(NaNGuard, SeesTheNormOfTheGradients) {
  TrainerOptions options;
  options.clip_grad = ClipNorm{};
  const auto trainer = make({.interval = 1}, options);
  expect_error<NonFiniteError>([&] { steps(*trainer, 20); },
                               {"at step 6, looked at after step 6", "2 values from 'loss' on"});
}

TEST_P(NaNGuard, LooksThroughLongIntervals) {
  const auto trainer = make({.interval = 2500});
  const Batch good = mlp_task().batch(2, 1);
  while (trainer->progress().step < 2100) trainer->step(good);
  Batch bad = good;
  bad.set("input", at::full({2, 16}, kInf));
  trainer->step(bad);
  expect_error<NonFiniteError>(
      [&] {
        while (trainer->progress().step < 3000) trainer->step(good);
      },
      {"at step 2101, looked at after step 2500"});
}

TEST_P(NaNGuard, LooksOnceMoreAtTheEnd) {
  const auto trainer = make({.interval = 100});
  steps(*trainer, 7);
  expect_error<NonFiniteError>([&] { trainer->finish(); }, {"at step 6, looked at after step 7"});
}

TEST_P(NaNGuard, CanStopInsteadOrWarn) {
  const auto stopped = make({.interval = 4, .action = "stop"});
  steps(*stopped, 8);
  EXPECT_THAT(stopped->stop_reason(), HasSubstr("step 6 was not finite"));

  const auto warned = make({.interval = 4, .action = "warn"});
  ::testing::internal::CaptureStderr();
  steps(*warned, 15);
  warned->finish();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("at step 6, looked at after step 8"));
  EXPECT_THAT(log, HasSubstr("at step 9, looked at after step 12"));  // the weights stay bad
  EXPECT_EQ(warned->stop_reason(), "");
  EXPECT_EQ(warned->progress().step, 15);
}

TEST_P(NaNGuard, AddsNoOperatorBetweenTwoLooks) {
  const auto guarded = make({.interval = 5}, {}, 0), plain = make_plain({}, 0);
  for (int n = 1; n <= 20; ++n) {
    const auto operators = [](BaseTrainer& trainer) {
      const CountOperators counting;
      step(trainer, 1.0);
      return CountOperators::count;
    };
    const int of_guarded = operators(*guarded), of_plain = operators(*plain);
    if (n % 5 == 0) {
      EXPECT_GT(of_guarded, of_plain) << "step " << n;
    } else {
      EXPECT_EQ(of_guarded, of_plain) << "step " << n;
    }
  }
}

TEST_P(NaNGuard, ChangesNoResult) {
  const auto guarded = make({.interval = 3});
  steps(*guarded, 10, 1.0);
  const auto plain = make_plain();
  steps(*plain, 10, 1.0);
  testing::expect_same_bits(guarded->weights(), plain->weights());
}

TEST_P(NaNGuard, TakesSkippedStepsAsTheyAre) {
  TrainerOptions options;
  options.non_finite = NonFinite::kSkip;
  const auto trainer = make({.interval = 1}, options);
  steps(*trainer, 12);
  trainer->finish();
  EXPECT_EQ(trainer->outcome(), RunOutcome::kFinished);
}

TEST_P(NaNGuard, SavesNoStateThatIsNotFinite) {
  const auto trainer = make({.interval = 100});
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 2}));
  expect_error<NonFiniteError>([&] { steps(*trainer, 20); },
                               {"weights from 'a.weight' on not finite after step 6", "checkpoint"});
  EXPECT_EQ(checkpoints(),
            (std::vector<std::string>{CheckpointStore::folder_name(2), CheckpointStore::folder_name(4)}));
}

TEST_P(NaNGuard, LeavesCheckpointsAsTheyAreWhenItOnlyWarns) {
  const auto trainer = make({.interval = 100, .action = "warn"});
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 2}));
  steps(*trainer, 9);
  ::testing::internal::CaptureStderr();
  trainer->finish();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("no checkpoint of step 9"));
  EXPECT_EQ(trainer->outcome(), RunOutcome::kFinished);
  EXPECT_EQ(checkpoints(),
            (std::vector<std::string>{CheckpointStore::folder_name(2), CheckpointStore::folder_name(4)}));
  expect_error<SaveRefused>([&] { trainer->save(folder_.path().string()); }, {"[NaNGuardHook]", "after step 9"});
}

TEST_P(NaNGuard, StopsWithoutAnErrorThoughTheLastStateCannotBeSaved) {
  const auto trainer = make({.interval = 4, .action = "stop"});
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 2}));
  while (trainer->stop_reason().empty()) step(*trainer);
  EXPECT_NO_THROW(trainer->finish());
  EXPECT_EQ(trainer->outcome(), RunOutcome::kStopped);
  EXPECT_EQ(trainer->progress().step, 8);
  EXPECT_EQ(checkpoints().back(), CheckpointStore::folder_name(4));
}

TEST_P(NaNGuard, BeginsItsWatchAnewWithEachRun) {
  const auto first = make({.interval = 4}), second = make({.interval = 4});
  steps(*first, 4);
  first->finish();
  second->load_state_dict(first->state_dict());
  expect_error<NonFiniteError>([&] { steps(*second, 20); }, {"at step 6, looked at after step 8"});
}

TEST_P(NaNGuard, RollsBackAndGoesOnWithTheDataThatComesThen) {
  Batch all = mlp_task().batch(40, 9);
  all["input"][24][3] = kInf;  // in step 13
  DataLoader data(std::make_shared<TensorDataset>(all.items()), {.batch_size = 2});
  TrainerOptions options;
  options.loop.max_steps = 25;
  options.work_dir = folder_.path().string();
  const auto trainer = make({.interval = 1, .action = "rollback"}, options);
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 5}));
  std::vector<std::pair<int64_t, int64_t>> steps;
  trainer->on(HookPoint::kBeforeTrainIter, [&steps](TrainContext& context) {
    steps.emplace_back(context.progress.step, context.step.micro_batches->batches[0].sample_ids()[0]);
  });
  ::testing::internal::CaptureStderr();
  trainer->train(data);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("back from step 13 to "));
  EXPECT_EQ(trainer->outcome(), RunOutcome::kFinished);
  EXPECT_EQ(trainer->progress().step, 25);
  EXPECT_EQ(trainer->progress().epoch, 1);
  ASSERT_EQ(steps.size(), 28U);
  EXPECT_EQ(steps[12], std::make_pair(int64_t{12}, int64_t{24}));
  EXPECT_EQ(steps[13], std::make_pair(int64_t{10}, int64_t{26}));
  EXPECT_EQ(steps[20], std::make_pair(int64_t{17}, int64_t{0}));  // the second epoch
  const StateDict weights = trainer->weights();
  for (const auto& [name, weight] : weights.tensors()) EXPECT_TRUE(at::isfinite(weight).all().item<bool>()) << name;
}

TEST_P(NaNGuard, RaisesWhereThereIsNothingToRollBackTo) {
  const auto trainer = make({.interval = 1, .action = "rollback"});
  expect_error<NonFiniteError>([&] { steps(*trainer, 20); }, {"at step 6"});  // no source to go on with
}

TEST_P(NaNGuard, EndsARunWhoseStepsAreAllSkipped) {
  TrainerOptions options;
  options.non_finite = NonFinite::kSkip;
  const auto bad_step = [](BaseTrainer& trainer) {
    Batch batch = mlp_task().batch(8, 1);
    batch["input"][3][2] = kInf;
    trainer.step(batch);
  };
  const auto trainer = make({.interval = 4, .max_consecutive_skips = 6}, options);
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 2}));
  while (trainer->progress().step < 3) step(*trainer, 1.0);
  expect_error<NonFiniteError>(
      [&] {
        while (trainer->progress().step < 50) bad_step(*trainer);
      },
      {"none of the last 8 steps up to step 12", "max_consecutive_skips 6", "the last checkpoint", "step-10"});

  const auto any = make({.interval = 4, .max_consecutive_skips = 0}, options);
  for (int i = 0; i < 30; ++i) bad_step(*any);
  expect_error<NonFiniteError>([&] { any->finish(); }, {"none of the 30 steps of this run changed a weight"});

  // With one good step among them the run is one that trains.
  const auto few = make({.interval = 4, .max_consecutive_skips = 6}, options);
  for (int i = 0; i < 40; ++i) i % 4 == 0 ? step(*few, 1.0) : bad_step(*few);
  few->finish();
  EXPECT_EQ(few->outcome(), RunOutcome::kFinished);
}

TEST_P(NaNGuard, EndsARunWhoseLossScaleFalls) {
  TrainerOptions options;
  options.loss_scale = LossScaleOptions{.init_scale = 16.0};
  const auto trainer = make({.interval = 5, .max_consecutive_skips = 0, .min_loss_scale = 0.01}, options);
  Batch batch = mlp_task().batch(8, 1);
  batch["input"][3][2] = kInf;
  expect_error<NonFiniteError>(
      [&] {
        while (trainer->progress().step < 50) trainer->step(batch);
      },
      {"the loss scale at", "after step 15", "min_loss_scale 0.01"});
}

TEST_P(NaNGuard, TellsHowManyStepsWereSkipped) {
  TrainerOptions options;
  options.non_finite = NonFinite::kSkip;
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
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run("warn")->stop_reason(), "");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("at step 28, looked at after step 30"));
  EXPECT_EQ(run("stop")->stop_reason(), "the loss of step 28 was a spike");
  expect_error<NonFiniteError>([&] { run("raise"); }, {"at step 28", "spike_threshold 8"});
}

INSTANTIATE_TEST_SUITE_P(Modes, NaNGuard, ::testing::Values("eager", "graph"));

class MaskedTask : public FakeTask {
 public:
  NamedTensors named_buffers() const override { return {{"mask", buffer}, {"count", at::zeros({}, at::kLong)}}; }
  at::Tensor buffer = at::full({2}, -kInf);
};

TEST(NaNGuardHook, AllowsInfinitiesInBuffersButNoNaN) {
  MaskedTask task;
  FakeRun run;
  TrainContext context{task, run.hyper_parameters, [&] { return run.state.state_dict(); }, "eager", ""};
  NaNGuardHook hook({.action = "stop"});
  hook.before_save_checkpoint(context);
  task.buffer[1] = std::nan("");
  expect_error<SaveRefused>([&] { hook.before_save_checkpoint(context); }, {"the buffer 'mask'"});
}

TEST(NaNGuardHook, RefusesOptionsOutOfRange) {
  expect_error<ConfigError>([] { NaNGuardHook hook({.interval = 0}); }, {"[NaNGuardHook]", "interval is 0"});
  expect_error<ConfigError>([] { NaNGuardHook hook({.action = "panic"}); }, {"'panic'", "raise, stop, warn, rollback"});
}

}  // namespace
}  // namespace duet
