#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "metrics/class_metric.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/two_layers.h"

// Evaluation and prediction, in both modes: the same outputs, the live weights, and a training that does not notice.

namespace duet {
namespace {

using testing::batch_at;
using testing::expect_same_bits;
using testing::make_trainer;
using testing::same_bits;
using testing::ToyTask;
using testing::TwoLayers;

// With a layer whose training flag shows.
struct DropoutNet : torch::nn::Module {
  torch::nn::Linear a{16, 8}, b{8, 5};
  torch::nn::Dropout dropout{0.5};
  DropoutNet() {
    register_module("a", a);
    register_module("b", b);
    register_module("dropout", dropout);
  }
  at::Tensor forward(const at::Tensor& x) { return b(dropout(torch::relu(a(x)))); }
};

template <class Net>
std::unique_ptr<Task> task_of(const std::shared_ptr<Net>& net) {
  return make_task(
      net, [](Net& own, const Batch& batch) { return own.forward(batch["input"]); },
      [](const at::Tensor& prediction, const Batch& batch) {
        return torch::nn::functional::cross_entropy(prediction, batch["target"]);
      });
}

TrainerOptions with_sgd() {
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
  return options;
}

class ForwardPassTest : public testing::InBothModes {};

TEST_P(ForwardPassTest, PredictsBetweenStepsWithTheWeightsOfNow) {
  seed_all(5);
  const auto net = std::make_shared<DropoutNet>();
  const auto trainer = make_trainer(mode(), task_of(net), with_sgd());
  for (int64_t n = 0; n < 40; ++n) {
    trainer->step(batch_at(n));
    const Batch batch = batch_at(100 + n, /*size=*/1);
    const NamedTensors outputs = trainer->predict(batch).items();
    EXPECT_TRUE(net->is_training() && net->dropout->is_training());
    ASSERT_EQ(outputs.size(), 1U);
    EXPECT_EQ(outputs[0].first, "prediction");
    EXPECT_FALSE(outputs[0].second.requires_grad());
    const at::NoGradGuard no_grad;
    net->eval();
    EXPECT_TRUE(same_bits(outputs[0].second, net->forward(batch["input"]))) << "step " << n;
    net->train();
  }
}

TEST_P(ForwardPassTest, TrainingDoesNotNotice) {
  for (const ToyTask& task : testing::all_toy_tasks()) {
    SCOPED_TRACE(task.name);
    const auto train = [&](bool predicts) {
      seed_all(7);
      const auto trainer = make_trainer(mode(), task.make(), with_sgd());
      for (int64_t n = 0; n < 20; ++n) {
        trainer->step(task.batch(8, static_cast<uint64_t>(n)));
        if (predicts) trainer->predict(task.batch(1 + n % 2, static_cast<uint64_t>(n)));
      }
      return trainer->state_dict();
    };
    expect_same_bits(train(false), train(true));
  }
}

TEST_P(ForwardPassTest, TheTrainingFlagsAreWhatTheyWere) {
  const auto net = std::make_shared<DropoutNet>();
  const auto trainer = make_trainer(mode(), task_of(net), with_sgd());
  net->a->eval();  // as a layer that somebody froze
  const auto data = testing::loader(4);
  const auto check = [&] { return net->is_training() && !net->a->is_training() && net->b->is_training(); };
  for (int64_t n = 0; n < 4; ++n) {
    trainer->predict(batch_at(n));
    EXPECT_TRUE(check()) << "after predict(batch)";
    trainer->validate(*data);
    EXPECT_TRUE(check()) << "after validate()";
  }
  net->eval();
  trainer->predict(batch_at(0));
  EXPECT_FALSE(net->is_training());
}

TEST_P(ForwardPassTest, OutputsStayWhatTheyAre) {
  // The batch, a weight and the same tensor twice are outputs, too.
  struct Odd : ModuleTask<TwoLayers> {
    using ModuleTask::ModuleTask;
    NamedTensors predict(const Batch& batch) override {
      const at::Tensor x = module().forward(batch["input"]);
      return {{"x", x}, {"again", x}, {"input", batch["input"]}, {"weight", module().b->weight}, {"row", x[0]}};
    }
  };
  const auto loss = [](TwoLayers& net, const at::Tensor&, const Batch& batch) {
    return to_step_output(testing::plain_loss(net, batch));
  };
  const auto trainer =
      make_trainer(mode(), std::make_unique<Odd>(std::make_shared<TwoLayers>(), nullptr, loss), with_sgd());
  std::vector<NamedTensors> kept, copies;
  for (int64_t n = 0; n < 12; ++n) {
    Batch batch = batch_at(n);
    kept.push_back(trainer->predict(batch).items());
    EXPECT_TRUE(same_bits(kept.back()[2].second, batch["input"]));
    copies.emplace_back();
    for (const auto& [name, tensor] : kept.back()) copies.back().emplace_back(name, tensor.detach().clone());
    at::Tensor input = batch["input"];
    input.zero_();
    trainer->step(batch_at(n));
  }
  for (std::size_t n = 0; n < kept.size(); ++n) {
    for (std::size_t i = 0; i < kept[n].size(); ++i) {
      EXPECT_TRUE(same_bits(kept[n][i].second, copies[n][i].second)) << kept[n][i].first << " of " << n;
    }
  }
}

DUET_IN_BOTH_MODES(ForwardPassTest);

struct Evaluation {
  std::vector<MetricValues> results;
  std::vector<at::Tensor> outputs;  // of validations and predictions, in order
  StateDict state;
  std::vector<SignatureReport> report;
};

// Trains with validations in between, the last batch of which is a smaller one, and predicts at the end.
Evaluation run(const ToyTask& task, const std::string& mode, std::optional<at::ScalarType> amp) {
  seed_all(11);
  TrainerOptions options = with_sgd();
  options.amp = amp;
  options.loop = {.max_epochs = 5};
  const auto trainer = make_trainer(mode, task.make(), options);
  if (task.batch(1, 0)["target"].dim() == 1) trainer->add_metric<Accuracy>();
  Evaluation run;
  const auto keep = [&run](TrainContext& context) {
    for (const auto& output : *context.evaluation.outputs) run.outputs.push_back(output.second);
  };
  trainer->on(HookPoint::kAfterValIter, keep);
  trainer->on(HookPoint::kAfterPredictIter, keep);
  trainer->on(HookPoint::kAfterVal,
              [&run](TrainContext& context) { run.results.push_back(context.evaluation.metrics); });
  const auto loader = [&task](int64_t samples) {
    DataLoaderOptions loader;
    loader.batch_size = 4;
    return DataLoader(std::make_shared<TensorDataset>(task.batch(samples, 9).items()),
                      std::make_unique<EpochSampler>(samples, /*shuffle=*/false, 4), loader);
  };
  DataLoader training = loader(8), validation = loader(11), others = loader(13);
  trainer->train(training, &validation);
  trainer->predict(others);
  run.state = trainer->state_dict();
  if (auto* graph = dynamic_cast<GraphTrainer*>(trainer.get())) run.report = graph->report();
  return run;
}

TEST(EvaluationParity, GraphGivesTheOutputsAndMetricsOfEager) {
  for (const ToyTask& task : testing::all_toy_tasks()) {
    for (const std::optional<at::ScalarType> amp : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
      SCOPED_TRACE(task.name + (amp ? " bf16" : ""));
      if (amp && !testing::runs_in_bfloat16(task)) continue;
      const Evaluation eager = run(task, "eager", amp), graph = run(task, "graph", amp);
      EXPECT_EQ(eager.results, graph.results);
      ASSERT_EQ(eager.outputs.size(), graph.outputs.size());
      for (std::size_t i = 0; i < eager.outputs.size(); ++i) {
        EXPECT_TRUE(same_bits(eager.outputs[i], graph.outputs[i])) << "output " << i;
      }
      expect_same_bits(eager.state, graph.state);
      int64_t replays = 0;
      for (const SignatureReport& report : graph.report) {
        EXPECT_NE(report.state, "eager") << report.kind << ": " << report.reason;
        if (report.kind == "validation") replays += report.replays;
      }
      EXPECT_EQ(replays, 8 + 3) << "10 whole batches and 5 rests, without the first two of each";
    }
  }
}

}  // namespace
}  // namespace duet
