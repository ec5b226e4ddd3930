#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "hooks/epoch_hooks.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/fakes.h"

namespace duet {
namespace {

constexpr int64_t kRanks = 3;

class BufferTask : public FakeTask {
 public:
  explicit BufferTask(NamedTensors buffers) : buffers_(std::move(buffers)) {}
  NamedTensors named_buffers() const override { return buffers_; }

 private:
  NamedTensors buffers_;
};

NamedTensors buffers() {
  return {{"mean", at::tensor({1.0, 2.0}, at::kFloat)},
          {"wide", at::arange(4, at::kDouble).view({2, 2}).t()},
          {"half", at::full({2}, 60000.0, at::kHalf)},
          {"count", at::scalar_tensor(7, at::kLong)},
          {"mask", at::arange(2).to(at::kBool)},
          {"more", at::full({3}, -1, at::kFloat)},
          {"phase", at::full({2}, c10::complex<double>(1, 2), at::kComplexDouble)}};
}

// A group of three whose other two have values that are larger by 1.5.
class Others : public testing::FakeCommunicator {
 public:
  Others()
      : FakeCommunicator(
            0, kRanks, [](const at::Tensor& values) { values.mul_(kRanks).add_(3); },
            [](const at::Tensor& /*values*/, int64_t root) { EXPECT_EQ(root, 0); }) {}
};

// tests/distributed/hooks_test.cpp does it over real ranks.
TEST(SyncBuffersHook, TakesTheMeanOverProcessesAndWholeNumbersFromTheFirstOncePerStep) {
  BufferTask task(buffers());
  std::vector<const void*> places;
  const NamedTensors watched = task.named_buffers();
  for (const auto& entry : watched) places.push_back(entry.second.const_data_ptr());
  FakeRun run;
  TrainContext context{task, run.hyper_parameters, run.state, "eager", ""};
  Others group;
  context.communicator = &group;
  SyncBuffersHook hook;
  hook.before_train(context);
  context.progress.step = 3;
  hook.before_val(context);
  EXPECT_EQ(group.calls, 6);  // one message for each of the six types
  EXPECT_EQ(group.sums, 4);   // float, double, half, complex
  const NamedTensors before = buffers();
  for (std::size_t i = 0; i < watched.size(); ++i) {
    const auto& [name, buffer] = watched[i];
    EXPECT_EQ(buffer.const_data_ptr(), places[i]) << name << " moved";
    const bool is_mean = at::isFloatingType(buffer.scalar_type()) || buffer.is_complex();
    // Both parts of a complex number. 60001 is none of 16 bits, and the sum of three is infinite there.
    const at::Scalar more = buffer.is_complex() ? at::Scalar(c10::complex<double>(1, 1)) : at::Scalar(1);
    const at::Tensor expected = is_mean && name != "half" ? before[i].second + more : before[i].second;
    EXPECT_TRUE(at::equal(buffer, expected)) << name;
  }
  hook.before_val(context);
  EXPECT_EQ(group.sums, 4);
  context.progress.step = 4;
  hook.after_train_epoch(context);
  hook.before_val(context);
  EXPECT_EQ(group.sums, 8);
}

}  // namespace
}  // namespace duet
