#include <torch/torch.h>
#include "base/device.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

namespace duet {
namespace {

using testing::batch_at;
using testing::expect_same_bits;
using testing::ToyTask;
using testing::TwoLayers;

TrainerOptions adamw() {
  TrainerOptions options;
  options.device = "cpu";
  options.optimizer = AdamW{.lr = 1e-2};
  options.clip_grad = ClipNorm{0.5, 2.0};
  return options;
}

std::vector<Batch> micro_batches_of(const ToyTask& task, int64_t n) {
  std::vector<Batch> batches = {task.batch(8, static_cast<uint64_t>(n))};
  if (n % 3 == 2) batches.push_back(task.batch(5, static_cast<uint64_t>(100 + n)));
  return batches;
}

// What both a trainer and a step have.
StateDict without_loop(const StateDict& state) {
  StateDict kept;
  kept.put("model", state.part("model"));
  kept.put("optimizer", state.part("optimizer"));
  return kept;
}

struct Trained {
  std::vector<double> losses;
  StateDict state;
};

Trained by_trainer(const ToyTask& task, int64_t steps) {
  seed_all(7);
  EagerTrainer trainer(task.make(), adamw());
  Trained trained;
  for (int64_t n = 0; n < steps; ++n)
    trained.losses.push_back(trainer.step(micro_batches_of(task, n)).loss.item<double>());
  trained.state = without_loop(trainer.state_dict());
  return trained;
}

class GraphSteps : public ::testing::TestWithParam<Mode> {
 protected:
  std::unique_ptr<GraphStep> make(std::unique_ptr<Task> task, const TrainerOptions& options = adamw()) {
    auto step = std::make_unique<GraphStep>(std::move(task), options, GraphOptions{.fallback = Fallback::kStrict});
    step->set_mode(GetParam());
    return step;
  }
};

TEST_P(GraphSteps, GiveTheBitsOfATrainer) {
  for (const ToyTask& task : testing::all_toy_tasks()) {
    SCOPED_TRACE(task.name);
    const Trained wanted = by_trainer(task, 20);
    seed_all(7);
    const auto step = make(task.make());
    std::vector<double> losses;
    for (int64_t n = 0; n < 20; ++n) losses.push_back((*step)(micro_batches_of(task, n)).loss.item<double>());
    step->settle();
    EXPECT_EQ(losses, wanted.losses);
    expect_same_bits(without_loop(step->state_dict()), wanted.state);
    EXPECT_EQ(step->eager_steps() + step->replays(), 20);
    EXPECT_EQ(step->replays() >= 14, GetParam() == Mode::kGraph) << step->replays();
  }
}

TEST_P(GraphSteps, ChangeTheirModeBetweenSteps) {
  const ToyTask task = testing::mlp_task();
  const Trained wanted = by_trainer(task, 20);
  seed_all(7);
  const auto step = make(task.make());
  for (int64_t n = 0; n < 20; ++n) {
    if (n % 7 == 6) step->set_mode(step->mode() == Mode::kGraph ? Mode::kEager : Mode::kGraph);
    (*step)(micro_batches_of(task, n));
  }
  expect_same_bits(without_loop(step->state_dict()), wanted.state);
}

TEST_P(GraphSteps, GoOnFromTheStateOfATrainer) {
  const ToyTask task = testing::mlp_task();
  const auto go_on = [&](const auto& step) {
    seed_all(3);
    for (int64_t n = 0; n < 10; ++n) step(micro_batches_of(task, n));
  };
  seed_all(7);
  EagerTrainer trainer(task.make(), adamw());
  go_on([&](const std::vector<Batch>& batches) { trainer.step(batches); });
  const auto step = make(task.make());
  step->load_state_dict(trainer.state_dict());
  go_on([&](const std::vector<Batch>& batches) { trainer.step(batches); });
  go_on([&](const std::vector<Batch>& batches) { (*step)(batches); });
  expect_same_bits(without_loop(step->state_dict()), without_loop(trainer.state_dict()));
}

TEST_P(GraphSteps, LoadNothingThatDoesNotFit) {
  const auto step = make(testing::mlp_task().make());
  const at::Tensor before = step->task().named_parameters().front().second.detach().clone();
  const GraphStep other(testing::cnn_task().make(), adamw());
  expect_error<CheckpointError>([&] { step->load_state_dict(other.state_dict()); }, {"another model"});
  EXPECT_TRUE(testing::same_bits(step->task().named_parameters().front().second, before));
}

TEST_P(GraphSteps, GiveTheModelsOutputsOnRequest) {
  const auto forward = [](TwoLayers& net, const Batch& batch) { return net.forward(batch["input"]); };
  const auto loss = [](const at::Tensor& logits, const Batch& batch) {
    return torch::nn::functional::cross_entropy(logits, batch["target"]);
  };
  const auto net = std::make_shared<TwoLayers>();
  const auto step = make(make_task(net, forward, loss));
  for (int64_t n = 0; n < 8; ++n) {
    step->keep_outputs(n >= 4);
    const at::Tensor wanted = net->forward(batch_at(n)["input"]);
    const StepResult& result = (*step)(batch_at(n));
    ASSERT_EQ(result.outputs.size(), n >= 4 ? 1U : 0U);
    if (n < 4) continue;
    EXPECT_EQ(result.outputs[0][0].first, "prediction");
    EXPECT_TRUE(testing::same_bits(result.outputs[0][0].second, wanted)) << n;
  }
}

TEST_P(GraphSteps, SayWhereTheyFail) {
  const auto step = make(make_task(std::make_shared<TwoLayers>(), testing::plain_loss));
  for (int64_t n = 0; n < 4; ++n) (*step)(batch_at(n));
  Batch bad = batch_at(4);
  bad.set("input", at::ones({8, 12}));
  expect_error<StepError>([&] { (*step)(bad); }, {"[Task] step 4: addmm failed: mat1"});
}

INSTANTIATE_TEST_SUITE_P(Modes, GraphSteps, ::testing::Values(Mode::kEager, Mode::kGraph),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace duet
