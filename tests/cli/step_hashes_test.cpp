#include "cli/step_hashes.h"
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "cli/zoo/classifiers.h"
#include "core/task.h"
#include "make_trainer.h"
#include "tests/support/trainer_runs.h"

// What `duet compare --bisect` finds where two runs part.

namespace duet {
namespace {

std::vector<StepHashes> hashes_of(uint64_t seed, double lr, int steps = 4) {
  seed_all(seed);
  const auto trainer = make_trainer(Mode::kEager, make_mlp({.in_features = 6, .num_classes = 3, .hidden = {4}}),
                                    {.optimizer = SGD{.lr = lr}, .device = "cpu"});
  std::vector<StepHashes> hashes;
  trainer->add_hook(std::make_unique<StepHashHook>(hashes, steps));
  const Batch batch = {{"input", at::ones({4, 6})}, {"target", at::zeros({4}, at::kLong)}};
  for (int step = 0; step < steps; ++step) trainer->step(batch);
  trainer->finish();
  return hashes;
}

TEST(StepHashes, NameTheFirstStepAndTensorThatDiffer) {
  const std::vector<StepHashes> run = hashes_of(1, 0.1);
  ASSERT_EQ(run.size(), 4U);
  EXPECT_FALSE(first_difference(run, hashes_of(1, 0.1)));
  const auto other_rate = first_difference(run, hashes_of(1, 0.2));
  ASSERT_TRUE(other_rate);
  EXPECT_EQ(other_rate->step, 1);
  EXPECT_EQ(other_rate->tensor.rfind("weight '", 0), 0U) << other_rate->tensor;
  EXPECT_LT(other_rate->differing, other_rate->compared);
  const auto other_weights = first_difference(run, hashes_of(2, 0.1));
  ASSERT_TRUE(other_weights);
  EXPECT_EQ(other_weights->tensor, "loss");
  const auto longer = first_difference(run, hashes_of(1, 0.1, 5));
  ASSERT_TRUE(longer);
  EXPECT_EQ(longer->step, 5);
}

}  // namespace
}  // namespace duet
