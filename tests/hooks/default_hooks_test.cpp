#include <duet/hooks/default_hooks.h>

#include <duet/core/error.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "../support/expect_error.h"
#include "../support/fakes.h"
#include "../support/temp_dir.h"

namespace duet {
namespace {

using Names = std::vector<std::string>;

LoopOptions limit(int64_t updates, std::string work_dir = "") {
  return {.max_updates = updates, .work_dir = std::move(work_dir)};
}

TEST(DefaultHooks, AreAddedInTheOrderThatTheyRunIn) {
  FakeTrainer all(limit(1));
  add_default_hooks(all, {.param_scheduler = {{.type = "Polynomial"}}});
  EXPECT_EQ(all.hooks().order(), (Names{"timer", "logger", "param_scheduler", "checkpoint"}));

  FakeTrainer plain(limit(1));
  add_default_hooks(plain);
  EXPECT_EQ(plain.hooks().order(), (Names{"timer", "logger", "checkpoint"}));

  FakeTrainer none(limit(1));
  add_default_hooks(none, {.timer = false, .log = false, .save = false});
  EXPECT_EQ(none.hooks().size(), 0U);

  expect_error<ConfigError>([&] { add_default_hooks(none, {.logger = {.interval = 0}}); }, {"interval 0"});
}

TEST(DefaultHooks, WriteNothingWithoutAWorkDir) {
  FakeTrainer trainer(limit(3));
  add_default_hooks(trainer);
  FakeData data(5);
  trainer.train(data);
  EXPECT_EQ(trainer.update(), 3);
}

TEST(DefaultHooks, TrainLogAndResumeOnOneCurve) {
  const TempDir folder;
  const DefaultHooksOptions options = {.logger = {.interval = 1},
                                       .param_scheduler = {{.type = "Polynomial", .end = 11}},
                                       .checkpoint = {.interval = 2, .max_keep = -1}};
  const auto make = [&](int64_t updates) {
    auto trainer = std::make_unique<FakeTrainer>(limit(updates, folder / "run"));
    add_default_hooks(*trainer, options);
    return trainer;
  };
  FakeData data(4), resumed_data(4);
  make(5)->train(data);
  const std::string root = folder / "run/checkpoints";
  for (const char* name : {"step-2", "step-4", "step-5"}) EXPECT_TRUE(std::filesystem::exists(root + "/" + name));

  const auto resumed = make(8);
  resumed->load_state_dict(CheckpointStore::load(root + "/step-5"));
  resumed->train(resumed_data);
  EXPECT_EQ(resumed->update(), 8);
  EXPECT_EQ(resumed->epoch(), 2);
  EXPECT_DOUBLE_EQ(resumed->hyper_parameters().get(0, "lr"), 0.1 * (1 - 0.7));  // of the last update, the eighth

  int trained = 0;
  std::ifstream log(folder / "run/log.jsonl");
  for (std::string line; std::getline(log, line);) trained += line.find("\"train\"") != std::string::npos ? 1 : 0;
  EXPECT_EQ(trained, 8);
}

}  // namespace
}  // namespace duet
