// Runs that NaNGuardHook takes back to a checkpoint.
#include <functional>
#include <utility>
#include <gmock/gmock.h>
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "tests/hooks/nan_guard_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/sample_state.h"

namespace duet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::mlp_task;

using Act = std::function<void(TrainContext&)>;

struct Training {
  int64_t samples;
  std::function<void(at::Tensor& input)> spoil;  // some of them
  NaNGuardHookOptions guard;
  LoopOptions loop;
  CheckpointHookOptions saves;
  Act before_step{}, after_step{};
};

class NaNGuardRollback : public NaNGuard {
 protected:
  using Step = std::pair<int64_t, int64_t>;  // how many were finished before it, and its first sample

  // In batches of 2. What was logged.
  std::string train(const Training& training) {
    Batch all = mlp_task().batch(training.samples, 9);
    at::Tensor input = all["input"];
    if (training.spoil) training.spoil(input);
    DataLoader data(std::make_shared<TensorDataset>(all.items()), {.batch_size = 2});
    TrainerOptions options;
    options.loop = training.loop;
    trainer_ = make(training.guard, options);
    trainer_->add_hook(std::make_unique<CheckpointHook>(training.saves));
    trainer_->on(HookPoint::kBeforeTrainIter, [this](TrainContext& context) {
      steps_.emplace_back(context.progress.step, context.step.micro_batches->batches[0].sample_ids()[0]);
    });
    if (training.before_step) trainer_->on(HookPoint::kBeforeTrainIter, training.before_step);
    if (training.after_step) trainer_->on(HookPoint::kAfterTrainIter, training.after_step);
    return testing::stderr_of([&] {
      trainer_->train(data);
      EXPECT_EQ(trainer_->outcome(), RunOutcome::kFinished);
    });
  }
  static NaNGuardHookOptions at_once() { return {.interval = 1, .action = "rollback"}; }
  static NaNGuardHookOptions by_spikes() {
    return {.interval = 10, .spike_threshold = 1000, .spike_window = 10, .spike_action = "rollback"};
  }

  std::unique_ptr<BaseTrainer> trainer_;
  std::vector<Step> steps_;
};

TEST_P(NaNGuardRollback, RollsBackAndGoesOnWithTheDataThatComesThen) {
  const std::string log = train({.samples = 40,
                                 .spoil = [](at::Tensor& input) { input[24][3] = kInf; },  // in step 13
                                 .guard = at_once(),
                                 .loop = {.max_steps = 25},
                                 .saves = {.interval = 5}});
  EXPECT_THAT(log, HasSubstr("back from step 13 to "));
  EXPECT_EQ(trainer_->progress().step, 25);
  EXPECT_EQ(trainer_->progress().epoch, 1);
  ASSERT_EQ(steps_.size(), 28U);
  EXPECT_EQ(steps_[12], Step(12, 24));
  EXPECT_EQ(steps_[13], Step(10, 26));
  EXPECT_EQ(steps_[20], Step(17, 0));  // the second epoch
}

// The guard looks before each save, too: nothing is saved, and nothing good rotated away, behind a spike.
TEST_P(NaNGuardRollback, SavesNothingBetweenASpikeAndItsNextLook) {
  StateDict after_20;
  const auto compare = [&](TrainContext& context) {
    if (context.progress.step != 20) return;
    if (!after_20.tensors().empty()) testing::expect_same_bits(trainer_->weights(), after_20);
    after_20 = copy_of(trainer_->weights());
  };
  const std::string log = train({.samples = 96,
                                 .spoil = [](at::Tensor& input) { input.slice(0, 44, 46).mul_(1e4); },  // step 23
                                 .guard = by_spikes(),
                                 .loop = {.max_steps = 38},
                                 .saves = {.interval = 4, .max_keep = 2},
                                 .before_step = compare});
  EXPECT_THAT(log, AllOf(HasSubstr("back from step 24 to "), HasSubstr("the loss of step 23 was a spike"),
                         HasSubstr("the data of steps 21 to 24 are left out")));
  ASSERT_EQ(steps_.size(), 42U);
  EXPECT_EQ(steps_[23], Step(23, 46));
  EXPECT_EQ(steps_[24], Step(20, 48));
  EXPECT_EQ(checkpoints(), (std::vector<std::string>{"step-36", "step-38"}));
}

// The losses before a checkpoint are the measure of those in a run that goes on from it.
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
  const auto spoil_weights = [this, is_spoilt = false](TrainContext& context) mutable {
    if (context.progress.step != 20 || std::exchange(is_spoilt, true)) return;
    const at::NoGradGuard no_grad;
    const StateDict weights = trainer_->weights();
    for (const auto& [name, weight] : weights.tensors()) at::Tensor(weight).mul_(-1e4);
  };
  const std::string log = train({.samples = 96,
                                 .spoil = {},
                                 .guard = by_spikes(),
                                 .loop = {.max_steps = 40},
                                 .saves = {.interval = 10},
                                 .after_step = spoil_weights});
  EXPECT_THAT(log, AllOf(HasSubstr("back from step 30 to "), HasSubstr("step-20, and on"),
                         HasSubstr("from the checkpoint of step 20 went wrong 2 times"), HasSubstr("step-10, and on")));
  EXPECT_EQ(trainer_->progress().step, 40);
}

// A rollback at the very end: what a resume would go on from has the data left out, too.
TEST_P(NaNGuardRollback, SavesWhatItWentBackToWhereNoStepFollows) {
  train({.samples = 40,
         .spoil = [](at::Tensor& input) { input[38][3] = kInf; },  // step 20, the last one of the epoch
         .guard = at_once(),
         .loop = {.max_epochs = 1},
         .saves = {.interval = 8}});
  EXPECT_EQ(trainer_->progress().step, 16);
  const std::string root = CheckpointStore::root_of(folder_.path().string());
  EXPECT_EQ(CheckpointStore::load(root + "/step-16").integer("trainer.epoch"), 1);
}

// A save finds what no loss shows. The step that could not be saved comes again, and can be then.
TEST_P(NaNGuardRollback, RollsBackFromAStateThatCannotBeSaved) {
  const auto spoil_state = [this, is_spoilt = false](TrainContext& context) mutable {
    if (context.progress.step == 5 && !std::exchange(is_spoilt, true)) spoil(*trainer_, "exp_avg_sq");
  };
  train({.samples = 40,
         .spoil = {},
         .guard = {.interval = 100, .action = "rollback"},
         .loop = {.max_steps = 12},
         .saves = {.interval = 3},
         .after_step = spoil_state});
  EXPECT_EQ(checkpoints(), (std::vector<std::string>{"step-12", "step-3", "step-4", "step-6", "step-9"}));
}

TEST_P(NaNGuardRollback, RaisesWhereThereIsNothingToRollBackTo) {
  const auto trainer = make(at_once());
  expect_error<NonFiniteError>([&] { steps(*trainer, 20); }, {"at step 6"});  // no source to go on with
  const Training early{.samples = 40,
                       .spoil = [](at::Tensor& input) { input[4][3] = kInf; },  // step 3, before the first checkpoint
                       .guard = at_once(),
                       .loop = {.max_steps = 25},
                       .saves = {.interval = 5}};
  expect_error<NonFiniteError>([&] { train(early); }, {"step 3", "a checkpoint to go back to"});
}

DUET_IN_BOTH_MODES(NaNGuardRollback);

}  // namespace
}  // namespace duet
