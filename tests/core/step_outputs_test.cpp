#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/two_layers.h"

// What a hook sees of the model's outputs in a step, in both modes.

namespace duet {
namespace {

using testing::loader;
using testing::mlp_batch;
using testing::trainer_for;

class StepOutputs : public testing::InBothModes {};

TEST_P(StepOutputs, AreNotKeptOtherwiseNorUnderAnotherName) {
  for (const bool wanted : {false, true}) {
    const auto trainer = trainer_for(mode(), {});
    auto hook = std::make_unique<CallbackHook>("look");
    if (wanted) hook->want_outputs();
    hook->on(HookPoint::kAfterTrainIter, [wanted](TrainContext& run) {
      EXPECT_EQ(run.step.result->outputs.empty(), !wanted);
      const auto refused = [&run](const std::string& name, std::size_t micro_batch, const std::string& part) {
        expect_error<ConfigError>([&] { run.step.output(name, micro_batch); }, {part});
      };
      refused("logits", 0, wanted ? "'logits' of the model, expected one of prediction" : "wants_outputs()");
      refused("prediction", 1, wanted ? "1 micro-batches" : "no outputs");
    });
    trainer->add_hook(std::move(hook));
    for (uint64_t n = 0; n < 5; ++n) trainer->step(mlp_batch(n));
  }
}

TEST_P(StepOutputs, NeedAValueAndSoDoesWhatIsLogged) {
  for (const bool logged : {true, false}) {
    const auto net = std::make_shared<testing::TwoLayers>();
    const auto trainer =
        testing::make_trainer(mode(), make_task(net, [logged](testing::TwoLayers& own, const Batch& batch) {
                                const NamedTensors empty = {{"nothing", at::Tensor()}};
                                return StepOutput{testing::plain_loss(own, batch), logged ? empty : NamedTensors(),
                                                  logged ? NamedTensors() : empty};
                              }));
    auto hook = std::make_unique<CallbackHook>("watcher");
    hook->want_outputs();
    trainer->add_hook(std::move(hook));
    for (int64_t n = 0; n < 3; ++n) {
      expect_error<ConfigError>([&] { trainer->step(testing::batch_at(n)); },
                                {"[Task] training_step gave 'nothing' without a value", "leave it out"});
    }
  }
}

DUET_IN_BOTH_MODES(StepOutputs);

TEST(StepOutputsOfModes, HaveTheSameBitsAtEveryPointAndChangeNothing) {
  for (const HookPoint point :
       {HookPoint::kAfterBackward, HookPoint::kBeforeOptimizerStep, HookPoint::kAfterTrainIter}) {
    SCOPED_TRACE(to_string(point));
    std::vector<at::Tensor> seen[2], copies;  // as they are handed out
    std::vector<StateDict> states;
    for (const int mode : {0, 1}) {
      const auto trainer = trainer_for(mode == 0 ? "eager" : "graph", {.max_epochs = 4, .accumulate = 2});
      auto hook = std::make_unique<CallbackHook>("watcher");
      hook->want_outputs().on(point, [&, mode](TrainContext& run) {
        for (std::size_t i = 0; i < run.step.micro_batches->batches.size(); ++i) {
          seen[mode].push_back(run.step.output("prediction", i));
          EXPECT_EQ(seen[mode].back().size(0), run.step.micro_batches->batches[i].size());
          EXPECT_FALSE(seen[mode].back().requires_grad());
          if (mode == 0) copies.push_back(seen[mode].back().clone());
        }
      });
      trainer->add_hook(std::move(hook));
      trainer->train(*loader(10));
      states.push_back(trainer->state_dict());
    }
    ASSERT_EQ(seen[0].size(), 20U);
    ASSERT_EQ(seen[1].size(), 20U);
    for (std::size_t i = 0; i < 20; ++i) {
      EXPECT_TRUE(testing::same_bits(copies[i], seen[0][i])) << "later steps have changed " << i;
      EXPECT_TRUE(testing::same_bits(copies[i], seen[1][i])) << i;
    }
    testing::expect_same_bits(states[0], states[1]);
    const auto silent = trainer_for("graph", {.max_epochs = 4, .accumulate = 2});
    silent->train(*loader(10));
    testing::expect_same_bits(states[1].part("model"), silent->state_dict().part("model"));
  }
}

}  // namespace
}  // namespace duet
