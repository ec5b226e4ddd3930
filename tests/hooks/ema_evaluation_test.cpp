#include <gtest/gtest.h>
#include "base/error.h"
#include "hooks/ema_hook.h"
#include "tests/hooks/ema_runs.h"

// What evaluation sees of an average, and that the weights come back.

namespace duet {
namespace {

using namespace testing;

class EMAEvaluation : public EMA {};

// Notes the weights that the model holds at a point.
std::unique_ptr<Hook> noting(StateDict& seen, const std::string& at) {
  return std::make_unique<EveryPointHook>("noting", [&seen, at](const std::string& point, TrainContext& context) {
    if (point != at) return;
    for (const auto& [name, tensor] : context.task.named_parameters()) seen.set(name, tensor.detach().clone());
  });
}

TEST_P(EMAEvaluation, IsWhatEvaluationUses) {
  for (const char* point : {"before_val_iter", "before_test_iter", "before_predict_iter"}) {
    const auto trainer = make(mode());
    StateDict seen;
    trainer->add_hook(noting(seen, point));
    steps(*trainer, 0, 8);
    const StateDict weights = copy_of(trainer->weights()), average = average_of(*trainer);
    const void* place = trainer->weights().tensor("a.weight").data_ptr();
    const auto data = loader(6);
    if (std::string(point) == "before_val_iter") trainer->validate(*data);
    if (std::string(point) == "before_test_iter") trainer->test(*data);
    if (std::string(point) == "before_predict_iter") trainer->predict(*data, [](const Batch&, const NamedTensors&) {});
    expect_same_bits(seen, average);
    EXPECT_FALSE(equal(seen, weights));
    expect_same_bits(trainer->weights(), weights);
    expect_same_bits(average_of(*trainer), average);
    EXPECT_EQ(trainer->weights().tensor("a.weight").data_ptr(), place);
  }
}

TEST_P(EMAEvaluation, ValidationLeavesTrainingAsItIs) {
  LoopOptions loop;
  loop.max_steps = 12;
  EMASetting setup;
  setup.options.loop = loop;
  const auto data = loader(10), data_again = loader(10), validation = loader(4, 1, false);
  const auto silent = make(mode(), setup);
  silent->train(*data);
  setup.options.loop.val_interval = 2;
  const auto validated = make(mode(), setup);
  validated->train(*data_again, validation.get());
  expect_same_bits(validated->state_dict(), silent->state_dict());
  if (const auto* graph = dynamic_cast<GraphTrainer*>(validated.get())) {
    EXPECT_GE(graph->replays(), 9);
  }
}

// Throws after its first batch.
class BrokenData : public DataSource {
 public:
  void start_epoch(int64_t epoch) override { inner_->start_epoch(epoch); }
  std::optional<Batch> next() override {
    if (++batches_ == 2) throw DataError("[BrokenData] lost");
    return inner_->next();
  }
  int64_t batches_per_epoch() const override { return inner_->batches_per_epoch(); }

 private:
  std::unique_ptr<DataLoader> inner_ = loader(6);
  int batches_ = 0;
};

TEST_P(EMAEvaluation, GivesTheWeightsBackAfterAPassThatThrows) {
  const auto unbroken = make(mode());
  steps(*unbroken, 0, 12);
  const StateDict expected = copy_of(unbroken->state_dict());

  const auto trainer = make(mode());
  steps(*trainer, 0, 6);
  BrokenData broken;
  EXPECT_THROW(trainer->validate(broken), DataError);
  steps(*trainer, 6, 12);  // the next step finds them
  expect_same_bits(trainer->weights(), expected.part("model"));

  const StateDict weights = copy_of(trainer->weights());
  BrokenData again;
  EXPECT_THROW(trainer->test(again), DataError);
  expect_same_bits(trainer->state_dict().part("model"), weights);  // and so does a state
}

TEST_P(EMAEvaluation, GivesTheWeightsBackToTheModelThatOutlivesTheTrainer) {
  auto trainer = make(mode());
  steps(*trainer, 0, 6);
  const StateDict weights = trainer->weights(), before = copy_of(weights);
  BrokenData broken;
  EXPECT_THROW(trainer->validate(broken), DataError);
  trainer.reset();
  expect_same_bits(weights, before);
}

TEST_P(EMAEvaluation, AStateTakenInTheMiddleOfAPassHoldsTheWeights) {
  const auto trainer = make(mode());
  StateDict taken;
  std::vector<StateDict> seen;
  trainer->add_hook(std::make_unique<EveryPointHook>("taking", [&](const std::string& point, TrainContext& context) {
    if (point != "before_val_iter" && point != "after_val_iter") return;
    if (point == "after_val_iter" && taken.tensors().empty()) taken = copy_of(context.trainer.checkpoint_state());
    if (point == "before_val_iter") {
      seen.emplace_back();
      for (const auto& [name, tensor] : context.task.named_parameters()) seen.back().set(name, tensor.detach().clone());
    }
  }));
  steps(*trainer, 0, 8);
  const StateDict weights = copy_of(trainer->weights()), average = average_of(*trainer);
  trainer->validate(*loader(6));
  expect_same_bits(taken.part("model"), weights);
  expect_same_bits(taken.part("hooks.ema.weights"), average);
  ASSERT_EQ(seen.size(), 3U);
  for (const StateDict& state : seen) expect_same_bits(state, average);
}

DUET_IN_BOTH_MODES(EMAEvaluation);

}  // namespace
}  // namespace duet
