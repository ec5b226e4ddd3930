#include <gtest/gtest.h>
#include "base/error.h"
#include "core/hook.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

// Uses every point, as far as anybody can tell.
class Placed : public Hook {
 public:
  Placed(std::string name, int priority, std::vector<std::string> after = {})
      : name_(std::move(name)), priority_(priority), after_(std::move(after)) {}
  std::string name() const override { return name_; }
  int priority() const override { return priority_; }
  std::vector<std::string> after() const override { return after_; }

 private:
  std::string name_;
  int priority_;
  std::vector<std::string> after_;
};

std::unique_ptr<Hook> placed(std::string name, int priority = kNormal, std::vector<std::string> after = {}) {
  return std::make_unique<Placed>(std::move(name), priority, std::move(after));
}

class TwoPoints : public Hook {
 public:
  std::string name() const override { return "two_points"; }
  void before_val(TrainContext&) override {}
  void in_step(StepView&) override {}
};

class OnePointMore : public TwoPoints {
 public:
  std::string name() const override { return "one_more"; }

 private:
  void after_backward(TrainContext&) override {}
};

class CallsBase : public Hook {
 public:
  std::string name() const override { return "calls_base"; }
  void after_backward(TrainContext& run) override { Hook::after_backward(run); }
  void after_train_iter(TrainContext& run) override { Hook::after_train_iter(run); }
};

std::vector<HookPoint> used_points(const Hook& hook) {
  std::vector<HookPoint> used;
  for (int i = 0; i < static_cast<int>(HookPoint::kCount); ++i) {
    if (hook.uses(static_cast<HookPoint>(i))) used.push_back(static_cast<HookPoint>(i));
  }
  return used;
}

TEST(HookOrder, KnowsFromTheTypeWhichPointsAreUsed) {
  using Points = std::vector<HookPoint>;
  EXPECT_EQ(used_points(*as_hook(std::make_unique<TwoPoints>())), (Points{HookPoint::kBeforeVal, HookPoint::kInStep}));
  EXPECT_EQ(used_points(*as_hook(std::make_unique<OnePointMore>())),
            (Points{HookPoint::kBeforeVal, HookPoint::kAfterBackward, HookPoint::kInStep}));
  // An override that does nothing but call its base is one nevertheless.
  EXPECT_EQ(used_points(*as_hook(std::make_unique<CallsBase>())),
            (Points{HookPoint::kAfterTrainIter, HookPoint::kAfterBackward}));
  // Behind a base class the type is not known: everything may be used.
  EXPECT_EQ(used_points(*as_hook(std::unique_ptr<TwoPoints>(std::make_unique<OnePointMore>()))).size(),
            static_cast<std::size_t>(HookPoint::kCount));
}

TEST(HookOrder, GivesTheReasonOfEveryPlace) {
  HookList hooks;
  hooks.add(placed("late", kLow));
  hooks.add(placed("first", kNormal));
  hooks.add(placed("second", kNormal));
  hooks.add(placed("moved", kNormal), kLowest);
  hooks.add(placed("waits", kHighest, {"late"}));
  const auto places = hooks.places(HookPoint::kBeforeTrain);
  std::vector<std::string> lines;
  for (const HookPlace& place : places) lines.push_back(place.name + ": " + place.reason);
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "first: priority NORMAL (50)",
                       "second: priority NORMAL (50); added after first",
                       "late: priority LOW (70)",
                       "waits: priority HIGHEST (0); after late, as it declares",
                       "moved: priority LOWEST (100) instead of its own NORMAL (50)",
                   }));
  EXPECT_EQ(hooks.priority_of("moved"), kLowest);
  hooks.add(as_hook(std::make_unique<TwoPoints>()));
  EXPECT_EQ(hooks.places(HookPoint::kBeforeVal).size(), 6U);
  EXPECT_EQ(hooks.places(HookPoint::kBeforeTest).size(), 5U);
  expect_error<ConfigError>([&] { hooks.priority_of("nobody"); }, {"no hook 'nobody'"});
  expect_error<ConfigError>([&] { hooks.add(placed("x"), 101); }, {"priority 101", "0 to 100"});
}

TEST(Priority, HasNamesAndNumbers) {
  EXPECT_EQ(parse_priority("VERY_LOW"), kVeryLow);
  EXPECT_EQ(parse_priority("65"), 65);
  for (const char* wrong : {"", "101", "-1", "5x", "normal", " 5"}) EXPECT_FALSE(parse_priority(wrong)) << wrong;
  EXPECT_EQ(priority_text(70), "LOW (70)");
  EXPECT_EQ(priority_text(71), "71");
  for (const std::string& name : priority_names()) {
    EXPECT_EQ(priority_text(*parse_priority(name)).find(name + " ("), 0U);
  }
}

}  // namespace
}  // namespace duet
