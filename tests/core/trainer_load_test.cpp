#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

// What BaseTrainer::load() takes, from whom, and what is left where it fails; saves that are written while it trains.

namespace duet {
namespace {

using testing::loader;
using testing::mlp_batch;
using testing::trainer_for;

// The model draws from the process's generator, which several trainers share.
void step(BaseTrainer& trainer, uint64_t n) {
  seed_all(n);
  trainer.step(mlp_batch(n));
}

// Learns of loads, counts steps, and refuses states of one step, and those that say a negative number.
class RefusingHook : public Hook {
 public:
  explicit RefusingHook(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  void after_train_iter(TrainContext&) override { steps_.add_(1); }
  void after_load_checkpoint(TrainContext& context) override {
    last_loaded = context.progress.step;
    if (context.progress.step == kRefused) throw CheckpointError("not that one");
  }
  StateDict state_dict() const override {
    StateDict state;
    state.set("steps", steps_);
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    steps_.copy_(state.tensor("steps"));  // careless: changes first and checks then
    if (steps_.item<int64_t>() < 0) throw CheckpointError("found a negative number");
  }

  static constexpr int64_t kRefused = 3;
  int64_t last_loaded = -1;

 private:
  std::string name_;
  at::Tensor steps_ = at::zeros({}, at::kLong);
};

class TrainerLoad : public testing::InBothModes {
 protected:
  std::unique_ptr<BaseTrainer> trained(int64_t steps, const LoopOptions& loop = {}) const {
    auto trainer = trainer_for(mode(), loop, "AdamW", "", {Linear{.end = 50}});
    for (const char* name : {"a", "b", "c"}) trainer->add_hook(std::make_unique<RefusingHook>(name));
    for (int64_t n = 0; n < steps; ++n) step(*trainer, static_cast<uint64_t>(n));
    return trainer;
  }
};

TEST_P(TrainerLoad, WhatIsRefusedLeavesEverythingBitForBitAsItWas) {
  const TempDir folder;
  const std::string path = trained(RefusingHook::kRefused)->save(folder / "saved");
  const StateDict good = copy_of(trained(4)->state_dict());
  const auto target = trained(5), twin = trained(5);
  const StateDict before = copy_of(target->state_dict());
  const std::string parent = target->identity().parent;
  const auto expect_refused = [&](const auto& load, const std::vector<std::string>& parts) {
    expect_error<CheckpointError>(load, parts);
    expect_same_state(before, target->state_dict());
  };
  // By a hook that has heard of it, which hears of the way back; by one that cannot take its own; for want of a part.
  expect_refused([&] { target->load(path); }, {"'a'", "not that one"});
  expect_refused([&] { target->load_state_dict(CheckpointStore::load(path)); }, {"not that one"});
  EXPECT_EQ(target->identity().parent, parent);
  EXPECT_EQ(dynamic_cast<RefusingHook*>(target->hooks().find("a"))->last_loaded, 5);
  for (const std::string name : {"a", "b", "c"}) {
    StateDict bad = copy_of(good);
    bad.set("hooks." + name + ".steps", at::full({}, -1, at::kLong));
    expect_refused([&] { target->load_state_dict(bad); }, {"'" + name + "'", "negative"});
  }
  expect_refused([&] { target->load_state_dict(good.without("optimizer")); }, {"optimizer"});
  for (uint64_t n = 5; n < 9; ++n) {
    step(*target, n);
    step(*twin, n);
  }
  expect_same_state(twin->state_dict(), target->state_dict());
  target->load_state_dict(good);
  expect_same_state(good, target->state_dict());
}

TEST_P(TrainerLoad, TakesTheNumbersOfTheCheckpointOrItsOwn) {
  const TempDir folder;
  const auto trainer_at = [&](double lr) {
    TrainerOptions options;
    options.optimizer = AdamW{.lr = lr, .weight_decay = lr};
    options.schedules = {Linear{.end = 100}};
    seed_all(21);
    return testing::make_trainer(mode(), testing::mlp_task().make(), options);
  };
  const auto at = [](BaseTrainer& trainer, const std::string& name) { return trainer.hyper_parameters().get(0, name); };
  const auto source = trainer_at(0.01);
  for (uint64_t n = 0; n < 4; ++n) step(*source, n);
  const std::string path = source->save(folder / "saved");
  const auto unbroken = trainer_at(0.02);
  for (uint64_t n = 0; n < 4; ++n) step(*unbroken, n);

  const auto same = trainer_at(0.02), other = trainer_at(0.02);
  EXPECT_EQ(same->load(path), path);
  EXPECT_EQ(other->load(path, NumbersFrom::kThisRun), path);
  for (const auto& trainer : {source.get(), unbroken.get(), same.get(), other.get()}) step(*trainer, 4);
  for (const std::string name : {"lr", "weight_decay"}) {
    EXPECT_EQ(at(*same, name), at(*source, name)) << name;
    EXPECT_EQ(at(*other, name), at(*unbroken, name)) << name;
    EXPECT_NE(at(*other, name), at(*source, name)) << name;
  }
  // What is saved next says what was used.
  EXPECT_EQ(same->state_dict().number("optimizer.configured.0.lr"), 0.01);
  EXPECT_EQ(other->state_dict().number("optimizer.configured.0.lr"), 0.02);
  expect_same_tensor("a.weight", source->weights().tensor("a.weight"), same->weights().tensor("a.weight"));
}

TEST_P(TrainerLoad, PassesOverADamagedOneAndNamesItsParent) {
  const TempDir folder;
  const auto source = trained(1);
  for (uint64_t n = 1; n < 3; ++n) {
    source->save(folder / "saved");
    source->step(mlp_batch(n));
  }
  EXPECT_EQ(source->identity().parent, "");
  std::string bytes = read_bytes(folder / "saved/step-2/model.safetensors");
  bytes.back() ^= 1;
  std::ofstream(folder / "saved/step-2/model.safetensors", std::ios::binary) << bytes;
  const auto target = trained(0);
  const std::string log =
      testing::stderr_of([&] { EXPECT_EQ(target->load(folder / "saved"), folder / "saved/step-1"); });
  expect_contains(log, {"step-2/model.safetensors", "changed after it was saved", "passing over it"});
  EXPECT_EQ(target->progress().step, 1);
  EXPECT_EQ(target->identity().parent, folder / "saved/step-1");
  target->identity().data = "some";
  const RunIdentity saved = CheckpointStore::read_manifest(target->save(folder / "next")).run;
  EXPECT_EQ(saved.parent, folder / "saved/step-1");
  EXPECT_EQ(saved.data, "some");
  EXPECT_EQ(saved.world_size, 1);
}

// Every step is saved while the next ones change the tensors.
TEST_P(TrainerLoad, SavesInTheBackgroundHoldTheBitsOfTheirStep) {
  const TempDir folder;
  for (const bool async : {true, false}) {
    const auto trainer = trainer_for(mode(), {.max_epochs = 2}, "AdamW", folder / (async ? "async" : "at_once"));
    trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 1, .async = async}));
    trainer->train(*loader(10));
  }
  for (int64_t step = 1; step <= 10; ++step) {
    const std::string path = "/checkpoints/" + CheckpointStore::folder_name(step);
    expect_same_state(CheckpointStore::load(folder / "at_once" + path), CheckpointStore::load(folder / "async" + path));
  }
}

DUET_IN_BOTH_MODES(TrainerLoad);

}  // namespace
}  // namespace duet
