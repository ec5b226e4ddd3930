#include <filesystem>
#include <fstream>
#include <utility>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/logger_hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/list_data.h"
#include "tests/support/log_lines.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

// BaseTrainer::save() and load(): what they take, and that nothing is left half loaded; resumes.

namespace duet {
namespace {

using testing::EveryPointHook;
using testing::loader;
using testing::mlp_batch;
using testing::Names;
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
  EXPECT_EQ(other->load(path, HyperParametersFrom::kThisRun), path);
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
  expect_error<CheckpointError>([&] { trained(1)->load(folder / "nowhere"); }, {"nowhere"});
  expect_error<CheckpointError>([&] { trained(1)->save(folder.write("a_file", "x")); }, {"a_file", "not saved"});
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

TEST_P(TrainerLoad, ARunThatWentBackIsTheOnlyOneInItsFolderFromItsFirstSaveOn) {
  const TempDir folder;
  const auto trainer = trainer_for(mode(), {});
  const auto go_on = [&](uint64_t until) {
    while (trainer->progress().step < static_cast<int64_t>(until)) trainer->step(mlp_batch(until));
    trainer->save(folder / "saved");
  };
  const auto names = [&](const std::string& root) {
    Names found;
    for (const std::string& path : CheckpointStore(folder / root).list()) found.push_back(path.substr(path.size() - 6));
    return found;
  };
  for (const uint64_t step : {1, 2, 3}) go_on(step);
  EXPECT_EQ(names("saved"), (Names{"step-3", "step-2", "step-1"}));
  trainer->load(folder / "saved/step-2");
  EXPECT_EQ(names("saved").size(), 3U);
  go_on(4);
  go_on(5);
  EXPECT_EQ(names("saved"), (Names{"step-5", "step-4", "step-2", "step-1"}));
  EXPECT_EQ(names("saved.1"), Names{"step-3"});
}

// Batches whose position is in words of its own.
class OtherStream : public testing::ListData {
 public:
  using ListData::ListData;
  StateDict state_dict() const override {
    StateDict state;
    state.set("byte_offset", StateValue(int64_t{0}));
    return state;
  }
  void load_state_dict(const StateDict& state) override { static_cast<void>(state.integer("byte_offset")); }
};

TEST_P(TrainerLoad, APositionInAnotherKindOfSourceIsRefusedInWords) {
  const auto source = trainer_for(mode(), {.max_steps = 2});
  source->train(*loader(8));
  const StateDict state = copy_of(source->state_dict());
  const auto target = trainer_for(mode(), {.max_steps = 4});
  Names calls;
  target->add_hook(testing::recorder(calls));
  target->load_state_dict(state);
  calls.clear();
  testing::ListData plain({mlp_batch(1)});
  OtherStream other({mlp_batch(1)});
  expect_error<CheckpointError>([&] { target->train(plain); }, {"keeps no position", "load_weights()"});
  expect_error<CheckpointError>([&] { target->train(other); }, {"cannot go on", "byte_offset", "load_weights()"});
  expect_error<CheckpointError>([&] { target->train(*loader(10)); }, {"cannot go on", "10 samples"});
  EXPECT_TRUE(calls.empty());
  EXPECT_EQ(target->progress().step, 2);
  expect_same_state(state, target->state_dict());
  target->train(*loader(8));  // the right one is still welcome
  EXPECT_EQ(target->progress().step, 4);
}

TEST_P(TrainerLoad, AHookHearsOfEachCheckpointOnceItIsComplete) {
  for (const bool async : {false, true}) {
    const TempDir folder;
    const auto trainer = trainer_for(mode(), {.max_steps = 7}, "AdamW", folder / "run");
    trainer->add_hook(std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 3, .async = async}));
    Names saved;
    trainer->on(HookPoint::kAfterSaveCheckpoint, [&](TrainContext& at) {
      saved.push_back(std::filesystem::path(at.saved_checkpoint).filename().string());
      EXPECT_NO_THROW(CheckpointStore::read(at.saved_checkpoint));
    });
    trainer->train(*loader(10));
    trainer->save(folder / "more");
    EXPECT_EQ(saved, (Names{"step-3", "step-6", "step-7", "step-7"}));
  }
}

// The checkpoint is there all the same, and stays the best one.
TEST_P(TrainerLoad, WhatAHookThrowsAfterASaveEndsTheRunAndUndoesNoSave) {
  for (const auto& [async, interval] : {std::pair(false, 0), {true, 0}, {true, 4}}) {
    const TempDir folder;
    const auto trainer = trainer_for(mode(), {.max_steps = 7, .val_interval = 3}, "AdamW", folder / "run");
    CheckpointHookOptions options{.interval = interval, .save_best = {"loss"}, .async = async};
    options.save_begin = 4;  // whose save waits for that of the best one
    trainer->add_hook(std::make_unique<CheckpointHook>(options));
    trainer->on(HookPoint::kAfterSaveCheckpoint, [](TrainContext&) { throw CheckpointError("planted"); });
    expect_error<CheckpointError>([&] { trainer->train(*loader(10), *loader(4)); }, {"planted"});
    EXPECT_EQ(trainer->state_dict().text("hooks.checkpoint.best_folder"), "step-3");
    EXPECT_EQ(CheckpointStore(folder / "run/checkpoints").find_best(), folder / "run/checkpoints/step-3");
  }
}

TEST_P(TrainerLoad, AHookHearsOfEachLineOfTheLog) {
  const auto trainer = trainer_for(mode(), {.max_epochs = 1});
  trainer->add_hook(std::make_unique<LoggerHook>(LoggerHookOptions{.interval = 2, .sinks = {}}));
  Names lines;
  std::vector<double> losses, logged;
  trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& at) { losses.push_back(at.step.loss().item<double>()); });
  trainer->on(HookPoint::kOnLog, [&](TrainContext& at) {
    lines.push_back(at.log_line.kind + " " + std::to_string(static_cast<int>(at.log_line.values.at("step"))));
    logged.push_back(at.log_line.values.at("loss"));
  });
  trainer->train(*loader(10), *loader(4));
  EXPECT_EQ(lines, (Names{"train 2", "train 4", "train 5", "val 5"}));
  EXPECT_NEAR(logged.at(0), (losses.at(0) + losses.at(1)) / 2, 1e-6);
}

DUET_IN_BOTH_MODES(TrainerLoad);

// A run that stops anywhere goes on as if it had not, in either mode.
class TrainerResume : public testing::InBothModes {};

TEST_P(TrainerResume, ResumesFromEveryStepInEitherMode) {
  for (const int64_t accumulate : {1, 2}) {
    const LoopOptions loop = {.max_epochs = 3, .accumulate = accumulate};
    std::vector<StateDict> states;
    const auto whole = trainer_for(mode(), loop);
    whole->add_hook(std::make_unique<EveryPointHook>("save", [&](const std::string& point, TrainContext& context) {
      if (point == "after_train_iter" || point == "after_train_epoch")
        states.push_back(copy_of(context.trainer.checkpoint_state()));
    }));
    whole->train(*loader(10));
    const StateDict last = whole->state_dict();
    ASSERT_EQ(states.size(), accumulate == 1 ? 18U : 12U);
    for (const std::string other_mode : {"eager", "graph"}) {
      for (std::size_t i = 0; i < states.size(); ++i) {
        SCOPED_TRACE(other_mode + " from state " + std::to_string(i) + " of accumulate " + std::to_string(accumulate));
        const auto resumed = trainer_for(other_mode, loop);
        Names calls;
        resumed->add_hook(std::make_unique<EveryPointHook>(
            "save", [&](const std::string& point, TrainContext&) { calls.push_back(point); }));
        seed_all(1000 + i);
        const auto data = loader(10, 4);
        if (i % 2 == 1) resumed->step(testing::mlp_task().batch(3, 5));  // what it did before must not count
        resumed->load_state_dict(states[i]);
        EXPECT_EQ(calls.back(), "after_load_checkpoint");
        resumed->train(*data);
        expect_same_state(last, resumed->state_dict());
      }
    }
  }
}

TEST_P(TrainerResume, AStateOfAnotherModelIsRefusedAndChangesNothing) {
  const auto trainer = trainer_for(mode(), {});
  for (uint64_t n = 0; n < 4; ++n) trainer->step(testing::mlp_task().batch(4, n));
  const StateDict before = copy_of(trainer->state_dict());
  const auto expect_refused = [&](const StateDict& state, const Names& parts) {
    expect_error<CheckpointError>([&] { trainer->load_state_dict(state); }, parts);
    expect_same_state(before, trainer->state_dict());
  };
  seed_all(77);
  const auto cnn = testing::make_trainer(mode(), testing::cnn_task().make());
  const StateDict other = copy_of(cnn->state_dict());
  set_random_state(before.part("random"));
  expect_refused(
      other, {"missing there: a.weight", ", b.bias", "unknown to the model: ", "conv1.weight", ", norm.running_mean"});

  StateDict shaped = copy_of(before);
  shaped.set("model.a.weight", at::zeros({2, 2}));
  shaped.set("model.b.bias", at::zeros({5}, at::kDouble));
  expect_refused(shaped, {"a.weight", "[2, 2]", "b.bias", "Double"});

  StateDict sgd;
  {
    const auto source = trainer_for(mode(), {}, "SGD");
    sgd = copy_of(source->state_dict());
  }
  set_random_state(before.part("random"));
  expect_refused(sgd, {"optimizer"});

  StateDict generator = copy_of(before);
  generator.set("random.cpu", at::zeros({3}, at::kByte));
  expect_refused(generator, {"generator 'cpu'"});
  expect_refused(StateDict(), {"trainer.step"});
}

DUET_IN_BOTH_MODES(TrainerResume);

}  // namespace
}  // namespace duet
