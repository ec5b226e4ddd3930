#include <filesystem>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

// BaseTrainer::save() and load(), and loads that fail: they leave nothing half loaded.

namespace duet {
namespace {

using testing::loader;
using testing::mlp_batch;
using testing::Names;
using testing::trainer_for;

class TrainerSave : public testing::InBothModes {};

TEST_P(TrainerSave, LoadsTheNewestOfAFolderAndDeletesNone) {
  const TempDir folder;
  const auto trainer = trainer_for(mode(), {});
  for (uint64_t n = 1; n <= 6; ++n) {
    trainer->step(mlp_batch(n));
    trainer->save(folder / "saved");
  }
  for (int n = 1; n <= 6; ++n) EXPECT_TRUE(std::filesystem::exists(folder / "saved/step-" + std::to_string(n)));
  const auto loaded = trainer_for(mode(), {});
  loaded->load(folder / "saved");
  EXPECT_EQ(loaded->progress().step, 6);
  expect_error<CheckpointError>([&] { loaded->load(folder / "nowhere"); }, {"nowhere"});
  expect_error<CheckpointError>([&] { loaded->save(folder.write("a_file", "x")); }, {"a_file", "not saved"});
  EXPECT_EQ(loaded->progress().step, 6);
}

TEST_P(TrainerSave, ARunThatWentBackIsTheOnlyOneInItsFolderFromItsFirstSaveOn) {
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

// Batches without a position.
class Stream : public DataSource {
 public:
  void start_epoch(int64_t) override { given_ = 0; }
  std::optional<Batch> next() override { return given_++ < 3 ? std::optional<Batch>(mlp_batch(1)) : std::nullopt; }
  int64_t batches_per_epoch() const override { return 3; }

 private:
  int64_t given_ = 0;
};

// A position in words of its own.
class OtherStream : public Stream {
 public:
  StateDict state_dict() const override {
    StateDict state;
    state.set("byte_offset", StateValue(int64_t{0}));
    return state;
  }
  void load_state_dict(const StateDict& state) override { static_cast<void>(state.integer("byte_offset")); }
};

TEST_P(TrainerSave, APositionInAnotherKindOfSourceIsRefusedInWords) {
  const auto source = trainer_for(mode(), {.max_steps = 2});
  source->train(*loader(8));
  const StateDict state = copy_of(source->state_dict());
  const auto target = trainer_for(mode(), {.max_steps = 4});
  Names calls;
  target->add_hook(testing::recorder(calls));
  target->load_state_dict(state);
  calls.clear();
  Stream plain;
  OtherStream other;
  expect_error<CheckpointError>([&] { target->train(plain); }, {"keeps no position", "load_weights()"});
  expect_error<CheckpointError>([&] { target->train(other); }, {"cannot go on", "byte_offset", "load_weights()"});
  expect_error<CheckpointError>([&] { target->train(*loader(10)); }, {"cannot go on", "10 samples"});
  EXPECT_TRUE(calls.empty());
  EXPECT_EQ(target->progress().step, 2);
  expect_same_state(state, target->state_dict());
  target->train(*loader(8));  // the right one is still welcome
  EXPECT_EQ(target->progress().step, 4);
}

DUET_IN_BOTH_MODES(TrainerSave);

}  // namespace
}  // namespace duet
