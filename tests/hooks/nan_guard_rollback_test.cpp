// Runs that NaNGuardHook takes back to a checkpoint.
#include <filesystem>
#include <utility>
#include <gmock/gmock.h>
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "tests/hooks/nan_guard_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_state.h"

namespace duet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::mlp_task;

class NaNGuardRollback : public NaNGuard {
 protected:
  // Trains for 30 steps on data that are not finite for so many, from step 21 on. What was logged.
  std::string train_past_bad_data(CheckpointHookOptions saves, int64_t bad_steps) {
    Batch all = mlp_task().batch(96, 9);
    all["input"].slice(0, 40, 40 + 2 * bad_steps).fill_(kInf);
    DataLoader data(std::make_shared<TensorDataset>(all.items()), {.batch_size = 2});
    TrainerOptions options;
    options.loop.max_steps = 30;
    const auto trainer = make({.interval = 1, .action = "rollback"}, options);
    trainer->add_hook(std::make_unique<CheckpointHook>(std::move(saves)));
    ::testing::internal::CaptureStderr();
    trainer->train(data);
    EXPECT_EQ(trainer->outcome(), RunOutcome::kFinished);
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_P(NaNGuardRollback, RollsBackAndGoesOnWithTheDataThatComesThen) {
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

// The guard looks before each save, too: nothing is saved, and nothing good rotated away, behind a spike.
TEST_P(NaNGuardRollback, SavesNothingBetweenASpikeAndItsNextLook) {
  Batch all = mlp_task().batch(96, 9);
  all["input"].slice(0, 44, 46).mul_(1e4);  // step 23
  DataLoader data(std::make_shared<TensorDataset>(all.items()), {.batch_size = 2});
  TrainerOptions options;
  options.loop.max_steps = 38;
  const auto trainer =
      make({.interval = 10, .spike_threshold = 1000, .spike_window = 10, .spike_action = "rollback"}, options);
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 4, .max_keep = 2}));
  std::vector<std::pair<int64_t, int64_t>> steps;
  StateDict after_20;
  trainer->on(HookPoint::kBeforeTrainIter, [&](TrainContext& context) {
    steps.emplace_back(context.progress.step, context.step.micro_batches->batches[0].sample_ids()[0]);
    if (context.progress.step != 20) return;
    if (after_20.tensors().empty()) {
      after_20 = copy_of(trainer->weights());
    } else {
      testing::expect_same_bits(trainer->weights(), after_20);
    }
  });
  ::testing::internal::CaptureStderr();
  trainer->train(data);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("back from step 24 to "), HasSubstr("the loss of step 23 was a spike"),
                    HasSubstr("the data of steps 21 to 24 are left out (from epoch 0 position 40"),
                    HasSubstr("to position 48)")));
  ASSERT_EQ(steps.size(), 42U);
  EXPECT_EQ(steps[23], std::make_pair(int64_t{23}, int64_t{46}));
  EXPECT_EQ(steps[24], std::make_pair(int64_t{20}, int64_t{48}));
  EXPECT_EQ(checkpoints(), (std::vector<std::string>{"step-36", "step-38"}));
}

// The losses before a checkpoint are the measure of those after it, in the run that goes back to it.
TEST_P(NaNGuardRollback, KnowsTheLossesBeforeTheCheckpointThatItWentBackTo) {
  Batch all = mlp_task().batch(96, 9);
  all["input"].slice(0, 44, 46).mul_(1e4);  // step 23
  all["input"].slice(0, 52, 54).mul_(1e4);  // the third step after that
  DataLoader data(std::make_shared<TensorDataset>(all.items()), {.batch_size = 2});
  TrainerOptions options;
  options.loop.max_steps = 30;
  const auto trainer =
      make({.interval = 10, .spike_threshold = 1000, .spike_window = 10, .spike_action = "rollback"}, options);
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 4}));
  ::testing::internal::CaptureStderr();
  trainer->train(data);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("back from step 24 to "),
                    HasSubstr("the loss of step 23 was a spike; the data of steps 22 to 24 are left out (from epoch 0 "
                              "position 50")));
}

// And in one that goes on from it.
TEST_P(NaNGuardRollback, JudgesTheLossesAfterAResumeByThoseBeforeIt) {
  Batch all = mlp_task().batch(80, 9);
  all["input"].slice(0, 64, 66).mul_(1e4);  // step 33
  const auto trainer_until = [&](int64_t max_steps) {
    TrainerOptions options;
    options.loop.max_steps = max_steps;
    auto trainer = make({.interval = 8, .spike_threshold = 1000, .spike_window = 20, .spike_action = "stop"}, options);
    trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 0}));
    return trainer;
  };
  for (const int64_t until : {30, 40}) {
    DataLoader data(std::make_shared<TensorDataset>(all.items()), {.batch_size = 2});
    const auto trainer = trainer_until(until);
    if (until > 30) trainer->load(CheckpointStore::root_of(folder_.path().string()));
    trainer->train(data);
    EXPECT_EQ(trainer->stop_reason(), until > 30 ? "the loss of step 33 was a spike" : "");
  }
}

// Weights that are far off and finite are saved before a loss shows it: the first step from them goes wrong each time.
TEST_P(NaNGuardRollback, GoesBackFurtherWhereTheFirstStepFromACheckpointGoesWrongTwice) {
  DataLoader data(std::make_shared<TensorDataset>(mlp_task().batch(96, 9).items()), {.batch_size = 2});
  TrainerOptions options;
  options.loop.max_steps = 40;
  const auto trainer =
      make({.interval = 10, .spike_threshold = 1000, .spike_window = 10, .spike_action = "rollback"}, options);
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 10}));
  bool is_spoilt = false;
  trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& context) {
    if (context.progress.step != 20 || std::exchange(is_spoilt, true)) return;
    const at::NoGradGuard no_grad;
    const StateDict weights = trainer->weights();
    for (const auto& [name, weight] : weights.tensors()) at::Tensor(weight).mul_(1e4);
  });
  ::testing::internal::CaptureStderr();
  trainer->train(data);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("back from step 30 to "), HasSubstr("step-20, and on"),
                    HasSubstr("from the checkpoint of step 20 went wrong 2 times"), HasSubstr("step-10, and on")));
  EXPECT_EQ(trainer->outcome(), RunOutcome::kFinished);
  EXPECT_EQ(trainer->progress().step, 40);
}

TEST_P(NaNGuardRollback, StaysWithACheckpointWhereDataAreBadForTwoSteps) {
  const std::string log = train_past_bad_data({.interval = 10}, 2);
  EXPECT_THAT(log, ::testing::Not(HasSubstr("step-10, and on")));
  EXPECT_EQ(checkpoints(), (std::vector<std::string>{"step-10", "step-20", "step-21", "step-30"}));
}

TEST_P(NaNGuardRollback, StaysWithASuspectCheckpointWhereThereIsNoEarlierOne) {
  train_past_bad_data({.interval = 20}, 3);
  EXPECT_EQ(checkpoints(), (std::vector<std::string>{"step-20", "step-21", "step-30"}));
}

// A rollback at the very end: what a resume would go on from has the data left out, too.
TEST_P(NaNGuardRollback, SavesWhatItWentBackToWhereNoStepFollows) {
  Batch all = mlp_task().batch(40, 9);
  all["input"][38][3] = kInf;  // step 20, the last one of the epoch
  DataLoader data(std::make_shared<TensorDataset>(all.items()), {.batch_size = 2});
  TrainerOptions options;
  options.loop.max_epochs = 1;
  const auto trainer = make({.interval = 1, .action = "rollback"}, options);
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 8}));
  trainer->train(data);
  EXPECT_EQ(trainer->progress().step, 16);
  const std::string root = CheckpointStore::root_of(folder_.path().string());
  const StateDict saved = CheckpointStore::load(root + "/step-16");
  EXPECT_EQ(saved.integer("trainer.epoch"), 1);
}

// What is not finite by then may come of the spike: the first of the two counts.
TEST_P(NaNGuardRollback, TakesTheSpikeBeforeTheStepThatIsNotFinite) {
  Batch all = mlp_task().batch(80, 9);
  all["input"].slice(0, 44, 46).mul_(1e4);  // step 23
  all["input"][50][0] = kInf;               // step 26
  DataLoader data(std::make_shared<TensorDataset>(all.items()), {.batch_size = 2});
  TrainerOptions options;
  NaNGuardHookOptions both{.interval = 10, .action = "rollback", .spike_threshold = 1000, .spike_window = 10};
  both.spike_action = "rollback";
  options.loop.max_steps = 32;
  const auto trainer = make(both, options);
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 22}));
  ::testing::internal::CaptureStderr();
  trainer->train(data);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("back from step 32 to "));
  EXPECT_TRUE(std::filesystem::exists(CheckpointStore::root_of(folder_.path().string()) + "/step-22"));
}

// A save finds what no loss shows. The step that could not be saved comes again, and can be then.
TEST_P(NaNGuardRollback, RollsBackFromAStateThatCannotBeSaved) {
  DataLoader data(std::make_shared<TensorDataset>(mlp_task().batch(40, 9).items()), {.batch_size = 2});
  TrainerOptions options;
  options.loop.max_steps = 12;
  const auto trainer = make({.interval = 100, .action = "rollback"}, options);
  trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 3}));
  bool is_spoilt = false;
  trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& context) {
    if (context.progress.step == 5 && !std::exchange(is_spoilt, true)) spoil(*trainer, "exp_avg_sq");
  });
  trainer->train(data);
  EXPECT_EQ(trainer->outcome(), RunOutcome::kFinished);
  EXPECT_EQ(checkpoints(), (std::vector<std::string>{"step-12", "step-3", "step-4", "step-6", "step-9"}));
}

TEST_P(NaNGuardRollback, RaisesWhereThereIsNothingToRollBackTo) {
  const auto trainer = make({.interval = 1, .action = "rollback"});
  expect_error<NonFiniteError>([&] { steps(*trainer, 20); }, {"at step 6"});  // no source to go on with

  Batch all = mlp_task().batch(40, 9);
  all["input"][4][3] = kInf;  // in step 3, before the first checkpoint
  DataLoader data(std::make_shared<TensorDataset>(all.items()), {.batch_size = 2});
  TrainerOptions options;
  options.loop.max_steps = 25;
  options.work_dir = folder_.path().string();
  const auto early = make({.interval = 1, .action = "rollback"}, options);
  early->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 5}));
  expect_error<NonFiniteError>([&] { early->train(data); }, {"step 3", "a checkpoint to go back to"});
}

INSTANTIATE_TEST_SUITE_P(Modes, NaNGuardRollback, ::testing::Values("eager", "graph"));

}  // namespace
}  // namespace duet
