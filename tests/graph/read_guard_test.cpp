#include "graph/guards/read_guard.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/detail/bits.h"
#include "graph/record/op_recorder.h"

// Values that a step reads back to the host, computed without the step.

namespace duet {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

struct Recorded {
  StepProgram program;
  std::string failure;
};

// What the recorder makes of `code`; `weight` is at hand.
Recorded recorded(const Tensor& weight, const std::function<void()>& code) {
  OpRecorder recorder({{"weight", weight}});
  recorder.guard_reads();
  code();
  recorder.pause();
  recorder.finish({});
  return {recorder.program(), recorder.failure()};
}

TEST(ReadGuard, RunsWhatAValueDependsOnAndNothingElse) {
  const Tensor weight = torch::ones({64});
  const Tensor flag = torch::ones({2});
  const Tensor counter = torch::zeros({});
  const Recorded step = recorded(weight, [&] {
    const Tensor noise = at::dropout(weight, 0.5, true);
    const Tensor value = flag * 2;
    counter.add_(noise.sum());
    EXPECT_EQ((value + 1).sum().item<double>(), 6);
    weight.mul_(0.5);
  });
  ASSERT_EQ(step.failure, "");
  ASSERT_EQ(step.program.reads.size(), 1U);
  ReadGuard guard(step.program, {});
  EXPECT_EQ(guard.values(), "6.");
  const Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const Tensor weight_before = weight.clone(), counter_before = counter.clone();
  EXPECT_TRUE(guard.holds({}));
  flag.fill_(2);
  EXPECT_FALSE(guard.holds({}));
  EXPECT_THAT(guard.changed(), HasSubstr("aten::_local_scalar_dense, after the last read of parameter 'weight'"));
  flag.fill_(1);
  EXPECT_TRUE(guard.holds({}));
  EXPECT_TRUE(same_bits(before, at::detail::getDefaultCPUGenerator().get_state()));
  EXPECT_TRUE(same_bits(weight, weight_before));
  EXPECT_TRUE(same_bits(counter, counter_before));
  EXPECT_LT(guard.bytes(), 1024);
}

TEST(ReadGuard, TheRecorderRefusesWhatCannotBeComputedBefore) {
  const Tensor weight = torch::ones({64});
  const Tensor outside = torch::zeros({});
  const Tensor mean = torch::zeros({2}), variance = torch::ones({2});
  const auto refused = [&](const std::function<void()>& code) {
    const Recorded step = recorded(weight, code);
    EXPECT_THAT(step.failure, HasSubstr("reads a value back to the host"));
    EXPECT_TRUE(step.program.reads.empty());
  };
  refused([&] { outside.add_(1).item<double>(); });
  refused([&] {
    outside.add_(1);
    (outside * 2).item<double>();
  });
  refused([&] {
    const Tensor value = outside * 2;
    outside.add_(1);
    value.item<double>();
  });
  refused([&] { torch::rand({2}).sum().item<double>(); });
  refused([&] { torch::zeros({2}).mul(outside).bernoulli_(0.5).sum().item<double>(); });
  refused([&] {
    at::native_batch_norm(torch::ones({2, 2}) * outside, {}, {}, mean, variance, true, 0.1, 1e-5);
    (mean > 0).any().item<bool>();
  });
  refused([&] { weight.sum().item<double>(); });  // as much as all of the step
}

TEST(ReadGuard, IsNotMadeForReadsOfConstants) {
  const Tensor weight = torch::ones({64});
  const Recorded step = recorded(weight, [&] {
    torch::arange(5).sum().item<double>();
    weight.mul(2);
  });
  EXPECT_EQ(step.failure, "");
  EXPECT_TRUE(step.program.reads.empty());
}

TEST(ReadGuard, ComparesEachValueWhereTheStepReadsIt) {
  const Tensor weight = torch::ones({64});
  const Tensor outside = torch::ones({});
  const Recorded step = recorded(weight, [&] {
    const Tensor value = outside * 1;
    value.item<double>();
    value.mul_(0);
    value.item<double>();
  });
  ASSERT_EQ(step.failure, "");
  ReadGuard guard(step.program, {});
  EXPECT_EQ(guard.values(), "1., 0.");
  EXPECT_TRUE(guard.holds({}));
  outside.fill_(2);
  EXPECT_FALSE(guard.holds({}));
}

}  // namespace
}  // namespace duet
