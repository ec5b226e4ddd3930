#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include "core/task.h"
#include "graph/graph_trainer.h"
#include "tests/support/modes.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using testing::make_trainer;

// One weight w = 0, loss = mean over the tokens that count of (w - y)^2: the gradient is -2 mean(y).
std::unique_ptr<Task> masked_task(bool counts_tokens) {
  torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
  layer->weight.detach().zero_();
  const auto loss = [](torch::nn::LinearImpl& model, const Batch& batch) {
    const at::Tensor error = (model.forward(batch["one"]) - batch["y"]).square() * batch["mask"];
    return error.sum() / batch["mask"].sum();
  };
  if (!counts_tokens) return make_task(layer, loss);
  return make_task(layer, loss, [](const Batch& batch) { return batch["mask"].sum().item<double>(); });
}

Batch tokens(const std::vector<float>& y, const std::vector<float>& mask) {
  const auto rows = static_cast<int64_t>(y.size());
  return {
      {"one", at::ones({rows, 1})}, {"y", at::tensor(y).view({rows, 1})}, {"mask", at::tensor(mask).view({rows, 1})}};
}

class ModuleTaskWeight : public testing::InBothModes {};

TEST_P(ModuleTaskWeight, MakesMicroBatchesOfUnequalCountsOneMean) {
  const std::vector<Batch> micro_batches = {tokens({1, 0, 0, 0}, {1, 0, 0, 0}), tokens({3, 3, 3, 9}, {1, 1, 1, 0})};
  for (const bool counts_tokens : {false, true}) {
    TrainerOptions options;
    options.optimizer = SGD{.lr = 0.5};
    const auto trainer = make_trainer(GetParam(), masked_task(counts_tokens), options);
    trainer->step(micro_batches);
    // By tokens: mean(1, 3, 3, 3). By samples, which are four in each: (1 + 3) / 2.
    EXPECT_FLOAT_EQ(trainer->weights().tensor("weight").item<float>(), counts_tokens ? 2.5F : 2.0F);
  }
}

// What make_task takes and what not; tests/core/wrong_make_task.cpp holds what the compiler then says.
TEST(MakeTask, TakesLossesAndForwardsOfTheModule) {
  using Net = torch::nn::LinearImpl;
  using torch::nn::Linear;
  const auto loss = [](Net& net, const Batch& batch) { return net.forward(batch["x"]).sum(); };
  const auto with_log = [](Net&, const Batch&) { return StepOutput(); };
  const auto forward = [](Net& net, const Batch& batch) { return net.forward(batch["x"]); };
  const auto of_prediction = [](const at::Tensor& prediction, const Batch&) { return prediction.sum(); };
  const auto generic = [](auto& net, const auto& batch) { return net.forward(batch["x"]).sum(); };
  const auto weight = [](const Batch& batch) { return static_cast<double>(batch.size()); };
  const auto number = [](Net&, const Batch&) { return 1.0; };
  using Loss = decltype(loss);
  using OfPrediction = decltype(of_prediction);
  using Weight = decltype(weight);
  using Key = std::string (*)();
  static_assert(MakesTask<Linear, Loss> && MakesTask<std::shared_ptr<Net>, Loss>);
  static_assert(MakesTask<Linear, decltype(with_log)> && MakesTask<Linear, decltype(generic)>);
  static_assert(MakesTask<Linear, Loss, Weight> && MakesTask<Linear, Loss, std::nullptr_t>);
  static_assert(MakesTask<Linear, decltype(forward), OfPrediction>);
  static_assert(MakesTask<Linear, decltype(forward), OfPrediction, Weight>);
  static_assert(!MakesTask<Net, Loss>);
  static_assert(!MakesTask<Linear, Weight> && !MakesTask<Linear, decltype(number)>);
  static_assert(!MakesTask<Linear, OfPrediction> && !MakesTask<Linear, OfPrediction, decltype(forward)>);
  static_assert(!MakesTask<Linear, Loss, Weight, Weight>);
  static_assert(MakesTask<Linear, Loss, Weight, Key> && MakesTask<Linear, Loss, std::nullptr_t, Key>);
  static_assert(MakesTask<Linear, decltype(forward), OfPrediction, Weight, Key>);
  static_assert(MakesTask<Linear, Loss, Key> && MakesTask<Linear, Loss, Key, Weight>);
  static_assert(!MakesTask<Linear, Loss, Key, Key>);
  const auto task = make_task(Linear(2, 1), generic);
  EXPECT_EQ(task->training_step({{"x", at::ones({3, 2})}}).loss.dim(), 0);
}

// A factor that is no tensor: without a key, the recording's would stay.
TEST(MakeTask, CapturesAStepOncePerGraphKey) {
  torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
  double factor = 1;
  const auto forward = [](torch::nn::LinearImpl& net, const Batch& batch) { return net.forward(batch["x"]); };
  const auto loss = [&factor](const at::Tensor& prediction, const Batch&) { return prediction.sum() * factor; };
  const auto of_module = [&factor](torch::nn::LinearImpl& net, const Batch& batch) {
    return net.forward(batch["x"]).sum() * factor;
  };
  const auto key = [&factor] { return std::to_string(factor); };
  GraphStep steps[] = {
      GraphStep(make_task(layer, forward, loss, nullptr, key), {.optimizer = SGD{.lr = 1}, .device = "cpu"}),
      GraphStep(make_task(layer, of_module, key), {.optimizer = SGD{.lr = 1}, .device = "cpu"})};
  for (GraphStep& step : steps) {
    double expected = layer->weight.item<double>();
    for (int i = 0; i < 24; ++i) {
      factor = i % 3 + 1;
      step({{"x", at::ones({1, 1})}});
      expected -= factor;
    }
    EXPECT_NEAR(layer->weight.item<double>(), expected, 1e-4);
    EXPECT_EQ(step.report().size(), 3U);
    EXPECT_EQ(step.replays(), 24 - 2 * 3);
  }
}

// What a temporary gives may be kept, and walked over.
TEST(StateDict, LendsNothingOfATemporary) {
  const auto temporary = [] {
    StateDict state;
    state.set("weight", at::ones({3}));
    state.set("name", StateValue(std::string(100, 'x')));
    return state;
  };
  static_assert(!std::is_reference_v<decltype(temporary().tensors())>);
  static_assert(!std::is_reference_v<decltype(temporary().values())>);
  static_assert(!std::is_reference_v<decltype(temporary().tensor(""))>);
  static_assert(!std::is_reference_v<decltype(temporary().text(""))>);
  for (const auto& [name, tensor] : temporary().tensors()) EXPECT_EQ(name + std::to_string(tensor.numel()), "weight3");
  const std::string& text = temporary().text("name");
  EXPECT_EQ(text, std::string(100, 'x'));
}

DUET_IN_BOTH_MODES(ModuleTaskWeight);

}  // namespace
}  // namespace duet
