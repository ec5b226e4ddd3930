#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <ATen/ops/any.h>
#include <ATen/ops/eq.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "core/hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/modes.h"
#include "tests/support/rank_data.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_runs.h"

// A run that goes on with another batch_size or accumulate: epochs have another number of steps from there on.

namespace duet {
namespace {

using testing::make_trainer;

constexpr int64_t kSamples = 40;

struct Part {
  int64_t batch_size = 4, accumulate = 1;
  int64_t until = 0;  // steps; 0: `epochs`
  int64_t epochs = 0;
};

struct Seen {
  std::vector<int64_t> samples;  // of the second epoch
  int64_t planned = 0, steps = 0, epoch = 0;
  double last_lr = 0;
};

class TrainerEpochs : public testing::InBothModes {
 protected:
  TempDir folder;

  void run(const Part& part, Seen& seen) {
    TrainerOptions options;
    options.optimizer = SGD{.lr = 0.05};
    options.loop = {.max_steps = part.until, .max_epochs = part.epochs, .accumulate = part.accumulate};
    options.schedules = {Cosine{}};
    const auto trainer = make_trainer(GetParam(), testing::mlp_task().make(), options);
    auto watch = std::make_unique<CallbackHook>("watch");
    watch->on(HookPoint::kBeforeTrain,
              [&seen](TrainContext& context) { seen.planned = context.progress.planned_steps(); });
    watch->on(HookPoint::kBeforeTrainIter, [&seen](TrainContext& context) {
      seen.last_lr = context.hyper_parameters.get(0, "lr");
      for (const Batch& batch : context.step.micro_batches->batches) {
        const at::Tensor ids = batch["id"];
        const auto* first = ids.const_data_ptr<int64_t>();
        if (context.progress.epoch == 1) seen.samples.insert(seen.samples.end(), first, first + ids.numel());
      }
    });
    trainer->add_hook(std::move(watch));
    if (saved_) trainer->load(folder / "c");
    const NamedTensors samples = testing::numbered_samples(testing::mlp_task(), kSamples);
    const auto data = testing::share_of(samples, part.batch_size, one_process().get());
    trainer->train(*data);
    trainer->save(folder / "c");
    saved_ = true;
    seen.steps = trainer->progress().step;
    seen.epoch = trainer->progress().epoch;
  }

  void begin_anew() {
    saved_ = false;
    std::filesystem::remove_all(folder / "c");
  }

 private:
  bool saved_ = false;
};

void expect_each_once(std::vector<int64_t> samples) {
  std::sort(samples.begin(), samples.end());
  ASSERT_EQ(samples.size(), static_cast<std::size_t>(kSamples));
  for (int64_t i = 0; i < kSamples; ++i) EXPECT_EQ(samples[static_cast<std::size_t>(i)], i);
}

// Counted in larger batches the second epoch would be over long before its samples are.
TEST_P(TrainerEpochs, ALimitWithinAnEpochOfAnotherLengthLeavesNothingOut) {
  Seen seen;
  run({.batch_size = 4, .until = 17}, seen);  // 7 of 10 steps of the second epoch
  run({.batch_size = 10, .until = 18}, seen);
  EXPECT_EQ(seen.epoch, 1);
  run({.batch_size = 1, .epochs = 3}, seen);
  expect_each_once(seen.samples);
  EXPECT_EQ(seen.steps, 18 + 2 + 40);
}

TEST_P(TrainerEpochs, ThePlanIsWhatTheRunComesTo) {
  for (const Part& rest : {Part{.batch_size = 16, .epochs = 4}, Part{.batch_size = 1, .epochs = 4},
                           Part{.batch_size = 2, .accumulate = 3, .epochs = 4}, Part{.batch_size = 4, .epochs = 4}}) {
    Seen seen;
    const std::string text = testing::stderr_of([&] {
      run({.batch_size = 4, .until = 13}, seen);
      run(rest, seen);
    });
    EXPECT_EQ(text.find("prefer to keep the global batch") == std::string::npos, rest.batch_size == 4) << text;
    EXPECT_EQ(seen.planned, seen.steps) << "batch_size " << rest.batch_size;
    // Read before the last step: the value of the step before it.
    const double through = static_cast<double>(seen.steps - 2) / static_cast<double>(seen.steps);
    EXPECT_NEAR(seen.last_lr, 0.05 * (1 + std::cos(std::numbers::pi * through)) / 2, 1e-6);
    expect_each_once(seen.samples);
    begin_anew();
  }
}

// The perceptron. A batch that holds sample `nothing` weighs nothing, as one all of whose labels are ignored.
class WithoutWeight : public Task {
 public:
  explicit WithoutWeight(int64_t nothing) : nothing_(nothing) {}
  NamedTensors named_parameters() const override { return task_->named_parameters(); }
  NamedTensors named_buffers() const override { return task_->named_buffers(); }
  void train(bool on) override { task_->train(on); }
  void to(at::Device device) override { task_->to(device); }
  double weight(const Batch& batch) const override {
    const bool holds = nothing_ < 0 || batch["id"].eq(nothing_).any().item<bool>();
    return holds ? 0 : static_cast<double>(batch.size());
  }
  StepOutput training_step(const Batch& batch) override { return task_->training_step(batch); }

 private:
  std::unique_ptr<Task> task_ = testing::mlp_task().make();
  int64_t nothing_;
};

TEST_P(TrainerEpochs, AStepWhoseDataWeighNothingIsNotMadeAndTheRunCanBeResumedFromAnyOther) {
  constexpr int64_t kEpochs = 3, kStepsPerEpoch = kSamples / 4 - 1;
  const auto trainer_without = [](int64_t nothing) {
    TrainerOptions options;
    options.optimizer = SGD{.lr = 0.05};
    options.loop.max_epochs = kEpochs;
    options.schedules = {Cosine{}};
    return make_trainer(GetParam(), std::make_unique<WithoutWeight>(nothing), options);
  };
  const NamedTensors samples = testing::numbered_samples(testing::mlp_task(), kSamples);
  const auto data = [&samples] { return testing::share_of(samples, 4, one_process().get()); };
  const auto whole = trainer_without(7);
  std::vector<StateDict> states;
  auto save = std::make_unique<CallbackHook>("save");
  save->on(HookPoint::kAfterTrainIter,
           [&states](TrainContext& context) { states.push_back(copy_of(context.trainer.checkpoint_state())); });
  whole->add_hook(std::move(save));
  whole->train(*data());
  EXPECT_EQ(whole->progress().step, kEpochs * kStepsPerEpoch);
  EXPECT_EQ(whole->progress().planned_steps(), kEpochs * kStepsPerEpoch);
  const StateDict last = whole->state_dict();
  for (const StateDict& state : states) {
    const auto resumed = trainer_without(7);
    resumed->load_state_dict(state);
    resumed->train(*data());
    testing::expect_same_bits(last.part("model"), resumed->state_dict().part("model"));
    EXPECT_EQ(resumed->progress().step, whole->progress().step);
  }
  expect_error<DataError>([&] { trainer_without(-1)->train(*data()); },
                          {"no batch to learn from in epoch 0", "labels are ignored"});
}

DUET_IN_BOTH_MODES(TrainerEpochs);

}  // namespace
}  // namespace duet
