#include "graph/detail/static_inputs.h"
#include <vector>
#include <ATen/ScalarOps.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "graph/record/step_program.h"
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
}

// Every property that arithmetic, or the code that is handed the tensor, looks at.
TEST(StandIns, HaveEveryPropertyOfWhatTheyStandFor) {
  std::vector<at::Tensor> originals = {
      torch::randn({2, 3}),
      torch::randn({4, 3}).t(),
      torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
      torch::randn({8}).narrow(0, 3, 4),
      torch::randn({1}).expand({4}),
      torch::randn({0, 3}),
      torch::randn({}),
      at::native::wrapped_scalar_tensor(2.5),
      at::native::wrapped_scalar_tensor(3),
      at::native::wrapped_scalar_tensor(true),
      torch::randn({3}, at::kComplexFloat).conj(),
      at::imag(torch::randn({3}, at::kComplexFloat).conj()),
  };
  for (const at::ScalarType type :
       {at::kBool, at::kByte, at::kShort, at::kLong, at::kHalf, at::kBFloat16, at::kDouble}) {
    originals.push_back(torch::ones({2}, type));
  }
  for (const at::Tensor& original : originals) {
    SCOPED_TRACE(c10::str(original.scalar_type(), original.sizes(), original.strides()));
    const at::Tensor made = tensor_at(original.storage(), place_of(original));
    EXPECT_EQ(made.options().dtype(), original.options().dtype());
    EXPECT_EQ(made.device(), original.device());
    EXPECT_EQ(made.sizes(), original.sizes());
    EXPECT_EQ(made.strides(), original.strides());
    EXPECT_EQ(made.storage_offset(), original.storage_offset());
    EXPECT_EQ(made.is_conj(), original.is_conj());
    EXPECT_EQ(made.is_neg(), original.is_neg());
    EXPECT_EQ(made.unsafeGetTensorImpl()->is_wrapped_number(), original.unsafeGetTensorImpl()->is_wrapped_number());
    EXPECT_EQ(made.suggest_memory_format(), original.suggest_memory_format());
    EXPECT_EQ(at::result_type(made, torch::ones({2}, at::kHalf)),
              at::result_type(original, torch::ones({2}, at::kHalf)));
    EXPECT_TRUE(testing::same_bits(made.clone(), original.clone()));
  }
}

// Layouts and quantization have no stand-in: a batch with them runs eager, with the reason.
TEST(StandIns, AreNotMadeOfWhatHasMore) {
  const std::vector<at::Tensor> all = {torch::randn({2, 2}).to_sparse(),
                                       torch::quantize_per_tensor(torch::randn({2}), 0.1, 0, at::kQInt8),
                                       torch::randn({3}, at::kComplexFloat).conj()};
  for (const at::Tensor& odd : all) {
    EXPECT_EQ(StaticInputs::first_unsupported_input(one({{"x", odd}})), "x");
  }
}

}  // namespace
}  // namespace duet
