#include "hooks/default_hooks.h"
#include <gtest/gtest.h>
#include "base/error.h"
#include "hooks/detail/run_info_hooks.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"

namespace duet {
namespace {

using Names = std::vector<std::string>;

const Names kAll = {"runtime_info",  "nan_guard", "timer",           "sampler_seed",
                    "visualization", "logger",    "param_scheduler", "checkpoint"};

// A user's hook.
class Own : public Hook {
 public:
  std::string name() const override { return "own"; }
  void after_train_iter(TrainContext&) override { ++calls; }
  inline static int calls = 0;
};

TEST(DefaultHooks, AreAddedInTheOrderThatTheyRunIn) {
  FakeTrainer trainer({.max_steps = 1});
  register_default_hooks(trainer);
  EXPECT_EQ(trainer.hooks().order(), kAll);
  EXPECT_EQ(default_hook_keys(), kAll);
  const std::vector<int> priorities = {10, 40, 50, 50, 50, 60, 70, 90};
  for (std::size_t i = 0; i < kAll.size(); ++i)
    EXPECT_EQ(trainer.hooks().priority_of(kAll[i]), priorities[i]) << kAll[i];
}

TEST(DefaultHooks, AreOverriddenByKey) {
  FakeTrainer trainer({.max_steps = 1});
  HookOverrides changes;
  changes.remove("logger").set("visualization", std::unique_ptr<Own>()).set("timer", std::make_unique<Own>(), kLowest);
  register_default_hooks(trainer, {}, std::move(changes));
  EXPECT_EQ(trainer.hooks().order(),
            (Names{"runtime_info", "nan_guard", "sampler_seed", "param_scheduler", "checkpoint", "own"}));
  EXPECT_EQ(trainer.hooks().priority_of("own"), kLowest);

  // A key of one's own adds a hook; of two hooks under one key the last one counts.
  FakeTrainer more({.max_steps = 1});
  HookOverrides further;
  further.set("mine", std::make_unique<IterTimerHook>()).set("mine", std::make_unique<Own>(), 95);
  register_default_hooks(more, {}, std::move(further));
  Names expected = kAll;
  expected.emplace_back("own");
  EXPECT_EQ(more.hooks().order(), expected);
  // The type's points are known, though the list holds hooks.
  EXPECT_FALSE(more.hooks().find("own")->uses(HookPoint::kAfterBackward));
  EXPECT_TRUE(more.hooks().find("own")->uses(HookPoint::kAfterTrainIter));

  FakeTrainer typo({.max_steps = 1});
  expect_error<ConfigError>([&] { register_default_hooks(typo, {}, std::move(HookOverrides().remove("loger"))); },
                            {"'loger'", "did you mean 'logger'"});
}

TEST(DefaultHooks, AGuardOfOnesOwnTakesThePlaceOfTheBuiltInOne) {
  FakeTrainer trainer({.max_steps = 1});
  register_default_hooks(trainer);
  const Hook* const built_in = trainer.hooks().find("nan_guard");
  trainer.add_hook(std::make_unique<NaNGuardHook>(NaNGuardHookOptions{.interval = 3}));
  EXPECT_NE(trainer.hooks().find("nan_guard"), built_in);
  EXPECT_EQ(trainer.hooks().size(), kAll.size());
  expect_error<ConfigError>([&] { trainer.add_hook(std::make_unique<NaNGuardHook>()); }, {"second hook 'nan_guard'"});
}

TEST(DefaultHooks, WarnOnceOfAnotherPriority) {
  FakeTrainer trainer({.max_steps = 1});
  HookOverrides changes;
  changes.set("timer", std::make_unique<IterTimerHook>(), kLow).set("mine", std::make_unique<Own>(), kLow);
  const std::string text = testing::stderr_of([&] { register_default_hooks(trainer, {}, std::move(changes)); });
  const std::size_t first = text.find("default hook 'timer' (timer) has priority LOW (70) instead of NORMAL (50)");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("the default hook '", first + 1), std::string::npos) << text;
}

TEST(DefaultHooks, CustomHooksSkipNull) {
  FakeTrainer trainer({.max_steps = 2});
  std::vector<std::unique_ptr<Hook>> hooks;
  hooks.push_back(nullptr);
  hooks.push_back(std::make_unique<Own>());
  hooks.push_back(nullptr);
  register_custom_hooks(trainer, std::move(hooks));
  EXPECT_EQ(trainer.hooks().order(), Names{"own"});
  FakeData data(5);
  Own::calls = 0;
  trainer.train(data);
  EXPECT_EQ(Own::calls, 2);
}

}  // namespace
}  // namespace duet
