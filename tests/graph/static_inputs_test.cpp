#include "graph/detail/static_inputs.h"
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

MicroBatches one(const Batch& batch) { return {{batch}, {1.0}, 1.0}; }

TEST(StaticInputs, LieAsTheBatchWasAligned) {
  const at::Tensor all = torch::randn({64});
  for (const int64_t first : {0, 1, 5, 16, 31}) {
    const at::Tensor part = all.narrow(0, first, 32);
    StaticInputs inputs(one({{"x", part}}));
    inputs.fill(one({{"x", part}}));
    const at::Tensor own = inputs.micro_batches().batches[0]["x"];
    EXPECT_EQ(StaticInputs::misalignment(own), first * 4 % 64);
    EXPECT_TRUE(testing::same_bits(own, part));
    EXPECT_FALSE(own.is_alias_of(part));
  }
}

TEST(StaticInputs, KeepLayoutAndSampleNumbers) {
  Batch batch{{"x", torch::randn({6, 5}).narrow(0, 1, 4).t()}, {"y", torch::ones({1}).expand({4})}};
  batch.set_sample_ids({7, 8, 9, 10});
  StaticInputs inputs(one(batch));
  inputs.fill(one(batch));
  const Batch& own = inputs.micro_batches().batches[0];
  EXPECT_EQ(own["x"].strides(), batch["x"].strides());
  EXPECT_EQ(own["y"].strides(), batch["y"].strides());
  EXPECT_TRUE(testing::same_bits(own["x"], batch["x"]));
  EXPECT_EQ(own.sample_ids(), batch.sample_ids());
  EXPECT_EQ(StaticInputs::lend(one(batch)).batches[0].sample_ids(), batch.sample_ids());
}

}  // namespace
}  // namespace duet
