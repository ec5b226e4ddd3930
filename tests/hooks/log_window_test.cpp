#include "hooks/detail/log_window.h"
#include <cmath>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"

namespace duet {
namespace {

using Values = LogWindow::Values;

void add(LogWindow& window, const std::string& name, double value) {
  window.start_step();
  window.add(name, at::scalar_tensor(value, at::kDouble));
}

double read_one(LogWindow& window, const std::string& name) {
  for (const auto& [found, value] : window.read()) {
    if (found == name) return value;
  }
  return std::nan("");
}

TEST(LogWindow, SmoothsLossesTimesAndNormsAndLogsOtherNumbersAsTheyAre) {
  LogWindow window({.window_size = 3});
  for (int i = 1; i <= 5; ++i) {
    window.start_step();
    for (const char* name : {"loss", "decode.loss_ce", "grad_norm", "loss_scale", "accuracy"}) {
      window.add(name, at::scalar_tensor(static_cast<double>(i * i)));
    }
  }
  const double mean = (9 + 16 + 25) / 3.0;
  EXPECT_EQ(
      window.read(),
      (Values{{"loss", mean}, {"decode.loss_ce", mean}, {"grad_norm", mean}, {"loss_scale", 25}, {"accuracy", 25}}));
}

TEST(LogWindow, MakesEveryStatisticOfCustomCfg) {
  LogWindowOptions options;
  options.custom_cfg = {{"loss", "median", 4, "median4"},
                        {"loss", "median", 3, "median3"},
                        {"loss", "min", 3, "least"},
                        {"loss", "max", kGlobalWindow, "most"},
                        {"loss", "mean", kEpochWindow, "epoch_mean"},
                        {"loss", "current", 1, ""}};
  LogWindow window(options);
  for (const double value : {9.0, 4.0}) add(window, "loss", value);
  window.start_epoch();
  for (const double value : {8.0, 2.0, 5.0}) add(window, "loss", value);
  EXPECT_EQ(window.read(),
            (Values{{"loss", 5}, {"median4", 4.5}, {"median3", 5}, {"least", 2}, {"most", 9}, {"epoch_mean", 5}}));
}

TEST(LogWindow, MeansOfTimesCoverAllStepsSinceTheLine) {
  LogWindow window({.window_size = 2});
  for (const double seconds : {1.0, 0.0, 0.0, 0.0}) window.add("time", seconds);
  EXPECT_EQ(read_one(window, "time"), 0.25);
  window.add("time", 4.0);
  EXPECT_EQ(read_one(window, "time"), 2);
}

TEST(LogWindow, ReadsAllTypesAndShapesExactly) {
  LogWindow window;
  window.start_step();
  const double third = 1.0 / 3;
  window.add("f", at::scalar_tensor(third, at::kFloat));
  window.add("l", at::scalar_tensor(int64_t{1} << 40, at::kLong));
  window.add("d", at::full({1, 1}, third, at::kDouble));
  window.add("b", at::scalar_tensor(true, at::kBool));
  window.add("h", at::scalar_tensor(0.5, at::kBFloat16).requires_grad_());
  window.add("f2", at::scalar_tensor(2, at::kFloat));
  window.add("undefined", at::Tensor());
  EXPECT_EQ(window.read(), (Values{{"f", static_cast<float>(third)},
                                   {"l", static_cast<double>(int64_t{1} << 40)},
                                   {"d", third},
                                   {"b", 1},
                                   {"h", 0.5},
                                   {"f2", 2}}));
}

TEST(LogWindow, LeavesOutWhatGotNoValueAndShowsNaN) {
  LogWindow window({.custom_cfg = {{"loss", "min", 3, "least"}, {"loss", "median", 3, "middle"}}});
  window.add("rare", at::scalar_tensor(7.0));
  for (const double value : {1.0, std::nan(""), 2.0}) add(window, "loss", value);
  EXPECT_EQ(window.read().size(), 4U);
  add(window, "loss", 1);
  const Values values = window.read();
  EXPECT_EQ(values.size(), 3U);
  for (const auto& [name, value] : values) EXPECT_TRUE(std::isnan(value)) << name;
}

TEST(LogWindow, RefusesBadOptions) {
  const auto refused = [](const LogWindowOptions& options, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { check_options(LoggerHookOptions{.window = options}); }, parts);
  };
  refused({.mean_pattern = "("}, {"mean_pattern has '('"});
  refused({.custom_cfg = {{.data_src = ""}}}, {"data_src"});
  refused({.custom_cfg = {{"loss"}, {"accuracy", "mean", 2, "loss"}}}, {"two numbers as 'loss'"});
}

TEST(LogWindow, WarnsOnceOfASourceThatNobodyLogs) {
  LogWindow window({.custom_cfg = {{"lose"}}});
  const std::string text = testing::stderr_of([&] {
    add(window, "loss", 1);
    window.read();
    window.read();
  });
  EXPECT_NE(text.find("'lose', which this run does not log so far; it logs loss"), std::string::npos) << text;
  EXPECT_EQ(text.find("lose"), text.rfind("lose"));
}

}  // namespace
}  // namespace duet
