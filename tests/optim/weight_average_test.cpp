#include "optim/weight_average.h"
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

at::Tensor applied(int64_t count) { return at::full({1}, count, at::kLong); }
at::Tensor skipped(bool on) { return at::full({1}, on ? 1.0 : 0.0, at::kFloat); }

double value_of_step(int64_t step) { return std::sin(static_cast<double>(step)); }

// Averages of a float64 number after each of `steps`, the first of which is `start`.
std::vector<double> averaged(const WeightAverageOptions& options, int64_t steps, int64_t start) {
  const at::Tensor value = at::zeros({1}, at::kDouble);
  WeightAverage average(options, at::kCPU);
  average.add("value", value, true);
  average.start_at(start);
  std::vector<double> seen;
  for (int64_t step = 1; step <= steps; ++step) {
    value.fill_(value_of_step(step));
    average.update(applied(step), {});
    seen.push_back(average.items()[0].average.item<double>());
  }
  return seen;
}

// The definition: sum of new values with weights that the rest of the run shrinks.
std::vector<double> closed_form(const std::function<double(int64_t steps)>& weight, int64_t steps, int64_t start,
                                int64_t interval) {
  std::vector<double> expected;
  for (int64_t now = 1; now <= steps; ++now) {
    double sum = now <= start ? value_of_step(now) : 0, left = 1;
    for (int64_t step = now; step >= start && now > start; --step) {
      const int64_t steps = step - start;
      if (steps % interval != 0) continue;
      const double share = steps == 0 ? 1 : weight(steps);
      sum += left * share * value_of_step(step);
      left *= 1 - share;
    }
    expected.push_back(sum);
  }
  return expected;
}

TEST(WeightAverage, EqualsItsClosedFormInFloat64) {
  for (const int64_t interval : {1, 2, 5}) {
    for (const int64_t start : {1, 7}) {
      WeightAverageOptions options{.momentum = 0.03, .gamma = 20, .interval = interval};
      const auto check = [&](const char* type, const std::function<double(int64_t)>& weight) {
        options.type = type;
        const auto seen = averaged(options, 80, start);
        const auto expected = closed_form(weight, 80, start, interval);
        for (std::size_t i = 0; i < seen.size(); ++i) {
          EXPECT_NEAR(seen[i], expected[i], 1e-13) << type << ", interval " << interval << ", step " << i + 1;
        }
      };
      check("ExponentialMovingAverage", [](int64_t) { return 0.03; });
      check("MomentumAnnealingEMA",
            [](int64_t steps) { return std::max(0.03, 20.0 / (20 + static_cast<double>(steps))); });
      check("StochasticWeightAverage", [&](int64_t steps) { return 1.0 / static_cast<double>(steps / interval + 1); });
    }
  }
}

// Composer's EMA: smoothing = exp(-ln 2 / (half_life / update_interval)).
TEST(WeightAverage, HalfLifeIsTheStepsAfterWhichAWeightCountsHalf) {
  for (const int64_t interval : {1, 4}) {
    const at::Tensor value = at::ones({1}, at::kDouble);
    WeightAverage average({.half_life = 12, .interval = interval}, at::kCPU);
    average.add("value", value, true);
    average.start_at(1);
    average.update(applied(1), {});
    value.zero_();
    for (int64_t step = 2; step <= 25; ++step) average.update(applied(step), {});
    EXPECT_NEAR(average.items()[0].average.item<double>(), 0.25, 1e-15);  // two half-lives
  }
  const auto refused = [](const WeightAverageOptions& options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { WeightAverage(options, at::kCPU); }, parts);
  };
  refused({.momentum = 0.1, .half_life = 3}, {"half_life is 3", "a momentum", "remove half_life"});
  refused({.type = "StochasticWeightAverage", .half_life = 3}, {"half_life is 3", "alike"});
  refused({.half_life = -1}, {"half_life is -1"});
}

TEST(WeightAverage, ChangesNothingInASkippedStep) {
  const at::Tensor weight = at::randn({33}), buffer = at::randn({5});
  WeightAverage average({.momentum = 0.5}, at::kCPU);
  average.add("weight", weight, true);
  average.add("buffer", buffer, false);
  for (const int64_t start : {1, 100}) {  // averaging, and following
    average.start_at(start);
    average.copy_values();
    const at::Tensor before = average.items()[0].average.clone(), buffer_before = average.items()[1].average.clone();
    weight.add_(1);
    buffer.fill_(std::numeric_limits<double>::quiet_NaN());
    average.update(applied(10), skipped(true));
    EXPECT_TRUE(at::equal(average.items()[0].average, before));
    EXPECT_TRUE(at::equal(average.items()[1].average, buffer_before));
    buffer.fill_(2);
    average.update(applied(11), skipped(false));
    EXPECT_FALSE(at::equal(average.items()[0].average, before));
    EXPECT_TRUE(at::isfinite(average.items()[1].average).all().item<bool>());
  }
}

TEST(WeightAverage, DoesNotRoundSmallStepsAway) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor value = at::ones({4}, dtype);
    WeightAverage average({.momentum = 1e-4}, at::kCPU);
    average.add("value", value, true);
    average.start_at(1);
    average.update(applied(1), {});
    value.fill_(2);
    for (int64_t step = 2; step <= 101; ++step) average.update(applied(step), {});
    EXPECT_NEAR(average.items()[0].average[0].item<double>(), 2 - std::pow(1 - 1e-4, 100), 1e-5) << dtype;
  }
}

TEST(WeightAverage, KeepsLayoutAndPlace) {
  const at::Tensor value = at::randn({3, 4}).t();
  WeightAverage average({}, at::kCPU);
  average.add("value", value, true);
  const at::Tensor held = average.items()[0].average;
  const void* place = held.data_ptr();
  average.start_at(1);
  average.update(applied(1), {});
  average.copy_values();
  EXPECT_EQ(average.items()[0].average.data_ptr(), place);
  EXPECT_EQ(held.strides(), value.strides());
}

TEST(WeightAverage, RefusesOptionsOutOfRange) {
  const auto refuse = [](WeightAverageOptions options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { WeightAverage(options, at::kCPU); }, parts);
  };
  refuse({.type = "ExponentialMovingAverag"}, {"type", "did you mean 'ExponentialMovingAverage'"});
  for (const double momentum : {0.0, 1.5}) refuse({.momentum = momentum}, {"momentum", "(0, 1]"});
  WeightAverage({.momentum = 1}, at::kCPU);
}

}  // namespace
}  // namespace duet
