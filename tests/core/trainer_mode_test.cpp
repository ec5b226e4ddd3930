#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "make_trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

// Changing the mode of a run: the same bits as without a change.

namespace duet {
namespace {

using testing::batch_at;
using testing::expect_same_bits;

TrainerOptions on_cpu() {
  TrainerOptions options;
  options.device = "cpu";
  return options;
}

std::unique_ptr<BaseTrainer> trainer_in(Mode mode) {
  seed_all(5);
  return make_trainer(mode, testing::mlp_task().make(), on_cpu());  // has dropout
}

StateDict reference() {
  const auto trainer = trainer_in(Mode::kEager);
  for (int64_t n = 0; n < 30; ++n) trainer->step(batch_at(n));
  return trainer->state_dict();
}

TEST(TrainerMode, MayChangeAtAnyStep) {
  for (const Mode first : {Mode::kEager, Mode::kGraph}) {
    const auto trainer = trainer_in(first);
    for (int64_t n = 0; n < 30; ++n) {
      if (n % 7 == 5) trainer->set_mode(trainer->mode() == Mode::kEager ? Mode::kGraph : Mode::kEager);
      trainer->step(batch_at(n));
    }
    expect_same_bits(reference(), trainer->state_dict());
  }
}

TEST(TrainerMode, CapturedStepsStayForTheWayBack) {
  const auto trainer = trainer_in(Mode::kGraph);
  auto& graph = dynamic_cast<GraphTrainer&>(*trainer);
  for (int64_t n = 0; n < 10; ++n) trainer->step(batch_at(n));
  const int64_t eager_steps = graph.eager_steps();
  trainer->set_mode(Mode::kEager);
  for (int64_t n = 10; n < 20; ++n) trainer->step(batch_at(n));
  EXPECT_EQ(graph.eager_steps(), eager_steps) << "steps in mode eager are no fallbacks";
  trainer->set_mode(Mode::kGraph);
  for (int64_t n = 20; n < 30; ++n) trainer->step(batch_at(n));
  EXPECT_EQ(graph.eager_steps(), eager_steps) << "the step was captured again";
  expect_same_bits(reference(), trainer->state_dict());
}

TEST(TrainerMode, AnEagerTrainerAloneSaysHowToGetGraphMode) {
  EagerTrainer trainer(testing::mlp_task().make(), on_cpu());
  trainer.set_mode(Mode::kEager);
  expect_error<ConfigError>([&] { trainer.set_mode(Mode::kGraph); }, {"make_trainer()"});
  EXPECT_EQ(trainer.mode(), Mode::kEager);
}

}  // namespace
}  // namespace duet
