#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "data/data_loader.h"
#include "data/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

// Forward passes whose host code does not always do the same: their outputs must be those of eager mode, bit by bit,
// or there must be an error that names the cause.

namespace duet {
namespace {

using testing::batch_at;
using ::testing::HasSubstr;
using testing::make_trainer;
using testing::same_bits;
using testing::TwoLayers;

using PredictFn = std::function<NamedTensors(TwoLayers&, const Batch&)>;

class Predictor : public ModuleTask<TwoLayers> {
 public:
  Predictor(std::shared_ptr<TwoLayers> net, PredictFn predict)
      : ModuleTask(std::move(net), nullptr,
                   [](TwoLayers& own, const at::Tensor&, const Batch& batch) {
                     return to_step_output(testing::plain_loss(own, batch));
                   }),
        predict_(std::move(predict)) {}
  NamedTensors predict(const Batch& batch) override { return predict_(module(), batch); }

 private:
  PredictFn predict_;
};

struct Trap {
  std::string name;
  std::string reason;                                               // in the report
  PredictFn predict;                                                // copied for each run
  std::function<void(TwoLayers&, int64_t call)> between = nullptr;  // before each call
};

void PrintTo(const Trap& trap, std::ostream* out) { *out << trap.name; }

NamedTensors plain(TwoLayers& net, const Batch& batch) { return {{"prediction", net.forward(batch["input"])}}; }

NamedTensors reads_back(TwoLayers& net, const Batch& batch) {
  const at::Tensor y = net.forward(batch["input"]);
  return {{"prediction", y.sum().item<double>() > 0 ? y : -y}};
}

struct Traps {
  std::vector<Trap> traps;
  void operator()(const std::string& name, const std::string& reason, PredictFn predict) {
    traps.push_back({name, reason, std::move(predict)});
  }
  void between(const std::string& name, std::function<void(TwoLayers&, int64_t call)> between) {
    traps.push_back({name, "", plain, std::move(between)});
  }
};

void add_host_numbers(Traps& add) {
  add("ANumberThatChanges", "host code that changed",
      [calls = 0](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
        return {{"prediction", net.forward(batch["input"]) * (calls++ < 20 ? 1.0 : 2.0)}};
      });
  add("ACounter", "host code that changed", [calls = 0](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
    return {{"prediction", net.forward(batch["input"]) * ++calls}};
  });
  add("OutputsThatChangePlaces", "other tensors than the recorded ones",
      [calls = 0](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
        at::Tensor a = net.forward(batch["input"]), b = a.softmax(1);
        if (++calls > 20) std::swap(a, b);
        return {{"a", a}, {"b", b}};
      });
  add("OutputsThatChangeNames", "'late'", [calls = 0](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
    return {{++calls > 20 ? "late" : "early", net.forward(batch["input"])}};
  });
}

void add_obstacles(Traps& add) {
  add("AValueReadBack", "reads a value back", reads_back);
  add("AShapeThatDependsOnValues", "shape depends on values", [](TwoLayers& net, const Batch& batch) -> NamedTensors {
    const at::Tensor y = net.forward(batch["input"]);
    return {{"prediction", y.masked_select(y > 0)}};
  });
  add("MemoryReadByAddress", "by its address", [](TwoLayers& net, const Batch& batch) -> NamedTensors {
    const at::Tensor y = net.forward(batch["input"]);
    const float first = y.const_data_ptr<float>()[0];
    return {{"prediction", y}, {"first", torch::full({1}, first)}};
  });
}

void add_tensors(Traps& add) {
  add("ATensorThatIsKept", "", [last = at::Tensor()](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
    const at::Tensor y = net.forward(batch["input"]);
    const at::Tensor sum = last.defined() ? y + last : y + y;
    last = y;
    return {{"prediction", y}, {"sum", sum}};
  });
  add("OutputsOfTheHost", "", [](TwoLayers& net, const Batch& batch) -> NamedTensors {
    return {{"prediction", net.forward(batch["input"])}, {"classes", torch::tensor({3, 1, 4})}};
  });
  add("OutputsOfTheHostThatChange", "", [calls = 0](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
    return {{"prediction", net.forward(batch["input"])}, {"classes", torch::tensor({3, 1, ++calls / 20})}};
  });
  add("RandomNumbers", "", [](TwoLayers& net, const Batch& batch) -> NamedTensors {
    const at::Tensor y = net.forward(batch["input"]);
    return {{"prediction", y + 0.1 * torch::randn_like(y)}};
  });
  add("WritesInPlace", "", [](TwoLayers& net, const Batch& batch) -> NamedTensors {
    at::Tensor y = net.forward(batch["input"]);
    y.add_(1).slice(1, 0, 2).zero_();
    return {{"prediction", y}, {"part", y.t()[0]}};
  });
  add("AStateThatIsCarriedOn", "", [state = at::Tensor()](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
    if (!state.defined()) state = torch::zeros({8, 5});
    state.mul_(0.5).add_(net.forward(batch["input"]));
    return {{"state", state}};
  });
}

void add_models(Traps& add) {
  add.between("AWeightThatMoves", [](TwoLayers& net, int64_t call) {
    const at::NoGradGuard no_grad;
    if (call % 16 == 15) net.a->weight.set_data(net.a->weight * 0.5);
  });
  add.between("AParameterThatIsReplaced", [](TwoLayers& net, int64_t call) {
    if (call == 20) net.b->weight = torch::ones_like(net.b->weight);
  });
  add.between("ALayerThatIsFrozen", [](TwoLayers& net, int64_t call) { net.a->train(call % 5 > 2); });
}

std::vector<Trap> all_traps() {
  Traps add;
  add_host_numbers(add);
  add_obstacles(add);
  add_tensors(add);
  add_models(add);
  return add.traps;
}

struct Outcome {
  std::vector<NamedTensors> outputs;
  StateDict state;
  std::vector<SignatureReport> report;
};

Outcome run_trap(const Trap& trap, const std::string& mode) {
  seed_all(5);
  const auto net = std::make_shared<TwoLayers>();
  const auto trainer =
      make_trainer(mode, std::make_unique<Predictor>(net, trap.predict), {.optimizer = SGD{.lr = 0.05}});
  Outcome outcome;
  for (int64_t n = 0; n < 50; ++n) {
    if (trap.between) trap.between(*net, n);
    outcome.outputs.push_back(trainer->predict(batch_at(n)).items());
    if (n % 7 == 3) trainer->step(batch_at(n));
  }
  trainer->finish();
  outcome.state = trainer->state_dict();
  if (auto* graph = dynamic_cast<GraphTrainer*>(trainer.get())) outcome.report = graph->report();
  return outcome;
}

class EvaluationTraps : public ::testing::TestWithParam<Trap> {};

TEST_P(EvaluationTraps, GiveTheBitsOfEager) {
  const Outcome eager = run_trap(GetParam(), "eager"), graph = run_trap(GetParam(), "graph");
  std::string reasons;
  int64_t predictions = 0;
  for (const SignatureReport& report : graph.report) {
    std::cout << "  " << report.kind << " " << report.signature << ": " << report.state << ", " << report.replays
              << " replays, " << report.checked << " checked, " << report.differing << " differing, "
              << report.eager_steps << " eager; " << report.reason << "\n";
    if (report.kind != "prediction") continue;
    reasons += report.reason;
    predictions += report.replays + report.eager_steps;
  }
  EXPECT_THAT(reasons, HasSubstr(GetParam().reason));
  EXPECT_EQ(predictions, 50);
  ASSERT_EQ(eager.outputs.size(), graph.outputs.size());
  for (std::size_t n = 0; n < eager.outputs.size(); ++n) {
    ASSERT_EQ(eager.outputs[n].size(), graph.outputs[n].size());
    for (std::size_t i = 0; i < eager.outputs[n].size(); ++i) {
      EXPECT_EQ(eager.outputs[n][i].first, graph.outputs[n][i].first);
      EXPECT_TRUE(same_bits(eager.outputs[n][i].second, graph.outputs[n][i].second))
          << eager.outputs[n][i].first << " of call " << n;
    }
  }
  testing::expect_same_bits(eager.state, graph.state);
}

INSTANTIATE_TEST_SUITE_P(All, EvaluationTraps, ::testing::ValuesIn(all_traps()),
                         [](const auto& info) { return info.param.name; });

std::unique_ptr<BaseTrainer> graph_of(const PredictFn& predict, const GraphOptions& options) {
  return make_trainer("graph", std::make_unique<Predictor>(std::make_shared<TwoLayers>(), predict), {}, options);
}

TEST(EvaluationTrust, StrictRefusesWhatCannotBeCaptured) {
  const auto trainer = graph_of(reads_back, {.fallback = Fallback::kStrict});
  trainer->predict(batch_at(0));
  expect_error<GraphError>([&] { trainer->predict(batch_at(1)); }, {"reads a value back", "graph.fallback"});
}

// Without checks of the host code the comparisons find it, and nobody learns too late that results were wrong.
TEST(EvaluationTrust, OldNumbersThatWereUsedAreAnError) {
  double factor = 1;
  const auto scaled = [&factor](TwoLayers& net, const Batch& batch) -> NamedTensors {
    return {{"prediction", net.forward(batch["input"]) * factor}};
  };
  const auto trainer = graph_of(scaled, {.check = Check::kOff});
  for (int64_t n = 0; n < 30; ++n) trainer->predict(batch_at(n));
  factor = 2;
  expect_error<GraphError>(
      [&] {
        for (int64_t n = 0; n < 3000; ++n) trainer->predict(batch_at(n));
        trainer->finish();
      },
      {"prediction (input Float[8, 16]", "evaluate them again"});
}

TEST(EvaluationTrust, APassChecksWhatItReplayedBeforeItsResultsAreSeen) {
  double factor = 1;
  const auto loss = [&factor](TwoLayers& net, const Batch& batch) { return testing::plain_loss(net, batch) * factor; };
  GraphOptions options{.check_budget = 0, .verify_interval = 0};
  const auto trainer = make_trainer("graph", make_task(std::make_shared<TwoLayers>(), loss), {}, options);
  const auto source = [](int64_t samples) {
    DataLoaderOptions loader;
    loader.batch_size = 8;
    return DataLoader(std::make_shared<TensorDataset>(batch_at(1, samples).items()),
                      std::make_unique<EpochSampler>(samples, /*shuffle=*/false, 4), loader);
  };
  DataLoader many = source(8 * 1100), few = source(8 * 4);
  trainer->validate(many);  // past the replays that are checked in a row
  factor = 2;
  expect_error<GraphError>([&] { trainer->validate(few); }, {"validation (", "evaluate them again"});
}

TEST(EvaluationTrust, MayBeAskedForWhereHooksActInAStep) {
  std::vector<std::vector<at::Tensor>> seen;
  for (const char* mode : {"eager", "graph"}) {
    seen.emplace_back();
    seed_all(5);
    const auto forward = [](TwoLayers& net, const Batch& batch) { return net.forward(batch["input"]); };
    const auto loss = [](const at::Tensor& prediction, const Batch& batch) {
      return torch::nn::functional::cross_entropy(prediction, batch["target"]);
    };
    const auto trainer = make_trainer(mode, make_task(std::make_shared<TwoLayers>(), forward, loss));
    trainer->on(HookPoint::kAfterBackward, [&](TrainContext& context) {
      seen.back().push_back(trainer->predict(batch_at(context.progress.step))["prediction"]);
    });
    for (int64_t n = 0; n < 12; ++n) trainer->step(batch_at(n));
    trainer->finish();
  }
  ASSERT_EQ(seen[0].size(), 12U);
  ASSERT_EQ(seen[1].size(), 12U);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_TRUE(testing::same_bits(seen[0][i], seen[1][i])) << i;
}

}  // namespace
}  // namespace duet
