#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"

// A run that stops anywhere goes on as if it had not, in either mode.

namespace duet {
namespace {

using testing::EveryPointHook;
using testing::loader;
using testing::make_trainer;
using testing::Names;
using testing::trainer_for;

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
  const auto cnn = make_trainer(mode(), testing::cnn_task().make());
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
