#include "optim/detail/device_hyper_parameters.h"
#include <map>
#include <string>
#include <vector>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "tests/support/called_ops.h"

namespace duet {
namespace {

using Groups = std::vector<std::map<std::string, double>>;

double curve(std::size_t group, int64_t applied) {
  return static_cast<double>(10 * applied) + static_cast<double>(group);
}

// What an optimizer does around a step that follows `applied` others.
void advance(DeviceHyperParameters& numbers, int64_t applied, const at::Tensor& on_device) {
  on_device.fill_(applied);
  numbers.begin([applied] { return applied; });
  numbers.advance(on_device);
}

TEST(DeviceHyperParameters, FollowTheirCurvesByOneOperatorPerStep) {
  DeviceHyperParameters numbers(Groups{{{"lr", 1.0}, {"momentum", 0.5}}, {{"lr", 2.0}}}, at::kCPU);
  const at::Tensor applied = at::zeros({1}, at::kLong);
  {
    const testing::CalledOps counting;
    numbers.advance(applied);
    EXPECT_TRUE(testing::CalledOps::counts().empty()) << "nothing follows a curve";
  }
  numbers.set_schedule("lr", curve);
  advance(numbers, 0, applied);
  numbers.end();
  for (int64_t step = 1; step < 2 * DeviceHyperParameters::kRows + 3; ++step) {
    advance(numbers, step, applied);
    ASSERT_EQ(numbers.get(0, "lr"), curve(0, step));
    ASSERT_EQ(numbers.get(1, "lr"), curve(1, step));
    ASSERT_EQ(numbers.get(0, "momentum"), 0.5);
    numbers.end();
  }
  const testing::CalledOps counting;
  numbers.advance(applied);
  EXPECT_EQ(testing::CalledOps::counts(), (std::map<std::string, int>{{"duet::look_up_", 1}}));
}

// A replay cannot see what is set within its step, so nor does an eager step.
TEST(DeviceHyperParameters, AreForTheHostWhatTheyWereWhenTheStepBegan) {
  DeviceHyperParameters numbers(Groups{{{"lr", 1.0}, {"momentum", 0.5}}}, at::kCPU);
  const at::Tensor applied = at::zeros({1}, at::kLong);
  numbers.set(0, "momentum", 0.6);
  advance(numbers, 0, applied);
  numbers.set(0, "momentum", 0.7);
  EXPECT_EQ(numbers.at_begin(0, "momentum"), 0.6);
  numbers.end();
  advance(numbers, 1, applied);
  EXPECT_EQ(numbers.at_begin(0, "momentum"), 0.7);
}

TEST(DeviceHyperParameters, AreReadFromAGpuOnceBetweenTwoSteps) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a GPU";
  DeviceHyperParameters numbers(Groups{{{"lr", 1.0}}, {{"lr", 2.0}}, {{"lr", 3.0}}}, at::kCUDA);
  const at::Tensor applied = at::zeros({1}, at::TensorOptions(at::kLong).device(at::kCUDA));
  numbers.set_schedule("lr", curve);
  for (int64_t step = 0; step < 3; ++step) {
    advance(numbers, step, applied);
    numbers.end();
    const testing::CalledOps counting;
    for (std::size_t group = 0; group < 3; ++group) EXPECT_EQ(numbers.get(group, "lr"), curve(group, step));
    EXPECT_EQ(testing::CalledOps::counts()["aten::_to_copy"], 1);
    EXPECT_EQ(testing::CalledOps::counts()["aten::_local_scalar_dense"], 0);
  }
  numbers.set(1, "lr", 7);
  EXPECT_EQ(numbers.get(1, "lr"), 7);
}

}  // namespace
}  // namespace duet
