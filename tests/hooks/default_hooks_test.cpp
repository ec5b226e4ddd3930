#include "hooks/default_hooks.h"
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include "base/error.h"
#include "hooks/detail/run_info_hooks.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using Names = std::vector<std::string>;

LoopOptions limit(int64_t steps) { return {.max_steps = steps}; }

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
  FakeTrainer trainer(limit(1));
  register_default_hooks(trainer);
  EXPECT_EQ(trainer.hooks().order(), kAll);
  EXPECT_EQ(default_hook_keys(), kAll);
  const std::vector<int> priorities = {10, 40, 50, 50, 50, 60, 70, 90};
  for (std::size_t i = 0; i < kAll.size(); ++i)
    EXPECT_EQ(trainer.hooks().priority_of(kAll[i]), priorities[i]) << kAll[i];

  FakeTrainer wrong(limit(1));
  expect_error<ConfigError>([&] { register_default_hooks(wrong, {.logger = {.interval = 0}}); }, {"interval is 0"});
}

TEST(DefaultHooks, AreOverriddenByKey) {
  FakeTrainer trainer(limit(1));
  HookOverrides changes;
  changes.remove("logger").set("visualization", std::unique_ptr<Own>()).set("timer", std::make_unique<Own>(), kLowest);
  register_default_hooks(trainer, {}, std::move(changes));
  EXPECT_EQ(trainer.hooks().order(),
            (Names{"runtime_info", "nan_guard", "sampler_seed", "param_scheduler", "checkpoint", "own"}));
  EXPECT_EQ(trainer.hooks().priority_of("own"), kLowest);

  // A key of one's own adds a hook; of two hooks under one key the last one counts.
  FakeTrainer more(limit(1));
  HookOverrides further;
  further.set("mine", std::make_unique<IterTimerHook>()).set("mine", std::make_unique<Own>(), 95);
  register_default_hooks(more, {}, std::move(further));
  Names expected = kAll;
  expected.emplace_back("own");
  EXPECT_EQ(more.hooks().order(), expected);
  // The type's points are known, though the list holds hooks.
  EXPECT_FALSE(more.hooks().find("own")->uses(HookPoint::kAfterBackward));
  EXPECT_TRUE(more.hooks().find("own")->uses(HookPoint::kAfterTrainIter));

  FakeTrainer typo(limit(1));
  expect_error<ConfigError>([&] { register_default_hooks(typo, {}, std::move(HookOverrides().remove("loger"))); },
                            {"'loger'", "did you mean 'logger'"});
}

TEST(DefaultHooks, AGuardOfOnesOwnTakesThePlaceOfTheBuiltInOne) {
  FakeTrainer trainer(limit(1));
  register_default_hooks(trainer);
  const Hook* const built_in = trainer.hooks().find("nan_guard");
  trainer.add_hook(std::make_unique<NaNGuardHook>(NaNGuardHookOptions{.interval = 3}));
  EXPECT_NE(trainer.hooks().find("nan_guard"), built_in);
  EXPECT_EQ(trainer.hooks().size(), kAll.size());
  expect_error<ConfigError>([&] { trainer.add_hook(std::make_unique<NaNGuardHook>()); }, {"second hook 'nan_guard'"});
  expect_error<ConfigError>([&] { trainer.add_hook(std::make_unique<LoggerHook>()); }, {"second hook 'logger'"});
}

TEST(DefaultHooks, CustomHooksSkipNull) {
  FakeTrainer trainer(limit(2));
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

TEST(DefaultHooks, WarnOnceOfAnotherPriority) {
  FakeTrainer trainer(limit(1));
  HookOverrides changes;
  changes.set("timer", std::make_unique<IterTimerHook>(), kLow).set("mine", std::make_unique<Own>(), kLow);
  ::testing::internal::CaptureStderr();
  register_default_hooks(trainer, {}, std::move(changes));
  const std::string text = ::testing::internal::GetCapturedStderr();
  const std::size_t first = text.find("default hook 'timer' (timer) has priority LOW (70) instead of NORMAL (50)");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("the default hook '", first + 1), std::string::npos) << text;
}

TEST(DefaultHooks, WriteNothingWithoutAWorkDir) {
  FakeTrainer trainer(limit(3));
  register_default_hooks(trainer);
  FakeData data(5);
  trainer.train(data);
  EXPECT_EQ(trainer.progress().step, 3);
}

TEST(DefaultHooks, TrainLogAndResumeOnOneCurve) {
  const TempDir folder;
  const DefaultHooksOptions options = {.logger = {.interval = 1}, .checkpoint = {.interval = 2, .max_keep = -1}};
  const auto make = [&](int64_t steps) {
    auto trainer =
        std::make_unique<FakeTrainer>(limit(steps), folder / "run", std::vector<Schedule>{Polynomial{.end = 11}});
    register_default_hooks(*trainer, options);
    return trainer;
  };
  FakeData data(4), resumed_data(4);
  make(5)->train(data);
  const std::string root = folder / "run/checkpoints";
  for (const char* name : {"step-2", "step-4", "step-5"}) EXPECT_TRUE(std::filesystem::exists(root + "/" + name));

  const auto resumed = make(8);
  resumed->load_state_dict(CheckpointStore::load(root + "/step-5"));
  resumed->train(resumed_data);
  EXPECT_EQ(resumed->progress().step, 8);
  EXPECT_EQ(resumed->progress().epoch, 2);
  EXPECT_DOUBLE_EQ(resumed->hyper_parameters().get(0, "lr"), 0.1 * (1 - 0.7));  // of the last step, the eighth

  int trained = 0;
  std::ifstream log(folder / "run/log.jsonl");
  for (std::string line; std::getline(log, line);) trained += line.find("\"train\"") != std::string::npos ? 1 : 0;
  EXPECT_EQ(trained, 8);
}

}  // namespace
}  // namespace duet
