#include "graph/detail/graph_executor.h"
#include <atomic>
#include <thread>
#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "core/detail/train_step.h"
#include "core/task.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

// When a step may be captured, and that one which may not never trains on a frozen value. Each sabotage is run in both
// modes: whatever graph mode makes of it, the weights must be those of eager.

namespace duet {
namespace {

using testing::batch_at;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::plain_loss;
using testing::ToyTask;
using testing::TwoLayers;

using Loss = std::function<at::Tensor(TwoLayers&, const Batch&)>;

std::unique_ptr<BaseTrainer> trainer_for(const std::string& mode, const Loss& loss, const GraphOptions& graph = {}) {
  seed_all(3);
  return testing::make_trainer(mode, make_task(std::make_shared<TwoLayers>(), loss), {}, graph);
}

GraphTrainer& graph_of(BaseTrainer& trainer) { return dynamic_cast<GraphTrainer&>(trainer); }

// Both modes with the same loss, made for each since it may have a memory.
void expect_eager_weights(const std::function<Loss()>& make_loss, const std::string& reason) {
  const auto eager = trainer_for("eager", make_loss());
  const auto graph = trainer_for("graph", make_loss());
  for (int64_t n = 0; n < 16; ++n) {
    eager->step(batch_at(n));
    graph->step(batch_at(n));
  }
  expect_same_bits(eager->state_dict(), graph->state_dict());
  const auto report = graph_of(*graph).report();
  ASSERT_EQ(report.size(), 1U);
  EXPECT_EQ(report[0].state, "eager");
  EXPECT_THAT(report[0].reason, HasSubstr(reason));
}

TEST(GraphExecutor, ItemInTheLossRunsEagerAndNamesTheOp) {
  expect_eager_weights(
      [] {
        return Loss([](TwoLayers& net, const Batch& batch) {
          const at::Tensor loss = plain_loss(net, batch);
          return loss * (loss.item<double>() > 1.5 ? 2.0 : 1.0);
        });
      },
      "_local_scalar_dense");
}

TEST(GraphExecutor, TheReasonNamesThePlaceInTheModel) {
  const Loss loss = [](TwoLayers& net, const Batch& batch) {
    const at::Tensor hidden = net.a(batch["input"]);
    if (hidden.sum().item<double>() > 1e9) return hidden.sum();
    return torch::nn::functional::cross_entropy(net.b(hidden), batch["target"]);
  };
  const auto graph = trainer_for("graph", loss);
  for (int64_t n = 0; n < 3; ++n) graph->step(batch_at(n));
  EXPECT_THAT(graph_of(*graph).report()[0].reason, HasSubstr("'a.weight'"));
}

TEST(GraphExecutor, NonzeroRunsEager) {
  expect_eager_weights(
      [] {
        return Loss([](TwoLayers& net, const Batch& batch) {
          const at::Tensor logits = net.forward(batch["input"]);
          return logits.index_select(0, (batch["target"] > 1).nonzero().flatten()).square().mean();
        });
      },
      "nonzero");
}

TEST(GraphExecutor, BooleanIndexingRunsEagerButIntegerIndexingIsCaptured) {
  expect_eager_weights(
      [] {
        return Loss([](TwoLayers& net, const Batch& batch) {
          return net.forward(batch["input"]).index({batch["target"] > 1}).square().mean();
        });
      },
      "aten::index");

  const auto graph = trainer_for("graph", [](TwoLayers& net, const Batch& batch) {
    return net.forward(batch["input"]).index({batch["target"]}).square().mean();
  });
  for (int64_t n = 0; n < 4; ++n) graph->step(batch_at(n));
  EXPECT_EQ(graph_of(*graph).report()[0].state, "captured");
}

TEST(GraphExecutor, ACapturedDoubleThatChangesAtEveryStepRunsEager) {
  expect_eager_weights(
      [] {
        auto factor = std::make_shared<double>(1.0);
        return Loss([factor](TwoLayers& net, const Batch& batch) {
          *factor *= 0.9;
          return plain_loss(net, batch) * *factor;
        });
      },
      "'other' of aten::mul");
}

TEST(GraphExecutor, ACapturedDoubleThatChangesLaterStopsTheRunWithoutChecks) {
  auto factor = std::make_shared<double>(1.0);
  GraphOptions unchecked;
  unchecked.check = Check::kOff;
  const auto loss = [factor](TwoLayers& net, const Batch& batch) { return plain_loss(net, batch) * *factor; };
  const auto graph = trainer_for("graph", loss, unchecked);
  for (int64_t n = 0; n < 8; ++n) graph->step(batch_at(n));
  *factor = 0.5;
  const auto keep_going = [&] {
    for (int64_t n = 8; n < 40; ++n) graph->step(batch_at(n));
  };
  EXPECT_THROW(keep_going(), GraphError);
}

TEST(GraphExecutor, ADoubleNamedInGraphKeyIsCapturedPerValue) {
  class Scaled : public ModuleTask<TwoLayers> {
   public:
    using ModuleTask<TwoLayers>::ModuleTask;
    StepOutput training_step(const Batch& batch) override { return {plain_loss(module(), batch) * factor, {}}; }
    std::string graph_key() const override { return std::to_string(factor); }
    double factor = 1.0;
  };
  StateDict states[2];
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    auto task = std::make_unique<Scaled>(std::make_shared<TwoLayers>(), nullptr, nullptr);
    Scaled* scaled = task.get();
    const auto trainer = testing::make_trainer(mode, std::move(task));
    for (int64_t n = 0; n < 20; ++n) {
      scaled->factor = n < 10 ? 1.0 : 0.25;
      trainer->step(batch_at(n));
    }
    states[mode == "graph"] = trainer->state_dict();
    if (mode == "graph") {
      EXPECT_EQ(graph_of(*trainer).report().size(), 2U);
      EXPECT_EQ(graph_of(*trainer).report()[1].state, "captured");
    }
  }
  expect_same_bits(states[0], states[1]);
}

TEST(GraphExecutor, ARepointedParameterIsNotTrainedAtItsOldPlace) {
  StateDict states[2];
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    auto net = std::make_shared<TwoLayers>();
    const auto trainer = testing::make_trainer(mode, make_task(net, plain_loss));
    for (int64_t n = 0; n < 20; ++n) {
      if (n == 9) net->a->weight.set_data(torch::full({8, 16}, 0.1));
      trainer->step(batch_at(n));
    }
    states[mode == "graph"] = trainer->state_dict();
    if (mode == "graph") {
      EXPECT_EQ(graph_of(*trainer).report()[0].state, "captured");
      EXPECT_GT(graph_of(*trainer).report()[0].eager_steps, 2);  // it was captured again
    }
  }
  expect_same_bits(states[0], states[1]);
}

TEST(GraphExecutor, AParameterThatTheModuleLetGoOfIsNoticedAtOnce) {
  StateDict states[2];
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    auto net = std::make_shared<TwoLayers>();
    const auto trainer = testing::make_trainer(mode, make_task(net, plain_loss));
    at::Tensor fresh = torch::full({8, 16}, 0.1, torch::requires_grad());
    for (int64_t n = 0; n < 20; ++n) {
      if (n == 12) net->a->weight = fresh;  // the forward now uses a tensor that no optimizer knows
      trainer->step(batch_at(n));
    }
    states[mode == "graph"] = trainer->state_dict();
  }
  expect_same_bits(states[0], states[1]);
}

TEST(GraphExecutor, ASwappedGradientHasNoEffectInEitherMode) {
  StateDict states[2];
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    auto net = std::make_shared<TwoLayers>();
    const auto trainer = testing::make_trainer(mode, make_task(net, plain_loss));
    for (int64_t n = 0; n < 20; ++n) {
      trainer->step(batch_at(n));
      if (n == 9) net->a->weight.mutable_grad() = torch::full({8, 16}, 100.0);
    }
    states[mode == "graph"] = trainer->state_dict();
  }
  expect_same_bits(states[0], states[1]);
}

TEST(GraphExecutor, GradientsOfAReplayAreThoseOfItsStep) {
  const auto eager = trainer_for("eager", plain_loss);
  const auto graph = trainer_for("graph", plain_loss);
  for (int64_t n = 0; n < 12; ++n) {
    const int64_t size = n % 4 == 3 ? 5 : 8;  // two signatures take turns
    eager->step(batch_at(n, size));
    graph->step(batch_at(n, size));
    const auto a = eager->task().named_parameters();
    const auto b = graph->task().named_parameters();
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(testing::same_bits(a[i].second.grad(), b[i].second.grad())) << a[i].first << " at step " << n;
    }
  }
}

TEST(GraphExecutor, StrictThrowsBeforeTheStepChangesAnything) {
  GraphOptions strict;
  strict.fallback = Fallback::kStrict;
  const auto graph = trainer_for(
      "graph",
      [](TwoLayers& net, const Batch& batch) {
        const at::Tensor loss = plain_loss(net, batch);
        return loss * loss.item<double>();
      },
      strict);
  graph->step(batch_at(0));
  const at::Tensor before = graph->task().named_parameters()[0].second.clone();
  EXPECT_THROW(graph->step(batch_at(1)), GraphError);
  EXPECT_TRUE(testing::same_bits(before, graph->task().named_parameters()[0].second));
}

TEST(GraphExecutor, FallbackEagerCapturesNothing) {
  GraphOptions never;
  never.fallback = Fallback::kEager;
  const auto graph = trainer_for("graph", plain_loss, never);
  for (int64_t n = 0; n < 5; ++n) graph->step(batch_at(n));
  EXPECT_EQ(graph_of(*graph).replays(), 0);
  EXPECT_EQ(graph_of(*graph).eager_steps(), 5);
}

TEST(GraphExecutor, TheByteBudgetDropsTheLeastRecentlyUsed) {
  GraphOptions small;
  small.cache_bytes = 1;
  const auto graph = trainer_for("graph", plain_loss, small);
  for (const int64_t size : {8, 8, 8, 4, 4, 4}) graph->step(batch_at(0, size));
  const auto report = graph_of(*graph).report();
  ASSERT_EQ(report.size(), 2U);
  EXPECT_EQ(report[0].state, "seen");
  EXPECT_EQ(report[1].state, "captured");
}

TEST(GraphExecutor, EveryHyperParameterTakesEffectAtTheNextStep) {
  for (const std::string name : {"lr", "weight_decay", "beta1", "beta2", "eps"}) {
    StateDict states[2];
    at::Tensor unchanged;
    for (const std::string mode : {"eager", "graph", "untouched"}) {
      const auto trainer = trainer_for(mode == "untouched" ? "eager" : mode, plain_loss);
      for (int64_t n = 0; n < 12; ++n) {
        if (n == 7 && mode != "untouched") {
          trainer->hyper_parameters().set(0, name,
                                          name == "eps" ? 1e-2 : 0.5 * trainer->hyper_parameters().get(0, name));
        }
        trainer->step(batch_at(n));
      }
      if (mode == "untouched")
        unchanged = trainer->state_dict().tensor("model.a.weight");
      else
        states[mode == "graph"] = trainer->state_dict();
    }
    expect_same_bits(states[0], states[1]);
    EXPECT_FALSE(testing::same_bits(unchanged, states[1].tensor("model.a.weight"))) << name << " had no effect";
  }
}

TEST(GraphExecutor, ALoadLetsGoOfStepsThatItOutdates) {
  const auto graph = trainer_for("graph", plain_loss);
  for (int64_t n = 0; n < 3; ++n) graph->step(batch_at(n));
  EXPECT_EQ(graph_of(*graph).report()[0].state, "captured");
  graph->task().named_parameters()[0].second.set_requires_grad(false);
  graph->load_state_dict(graph->state_dict());
  EXPECT_EQ(graph_of(*graph).report()[0].state, "seen");
  EXPECT_EQ(graph_of(*graph).report()[0].bytes, 0);
}

TEST(GraphExecutor, TheProgramCanBePrinted) {
  const auto graph = trainer_for("graph", plain_loss);
  for (int64_t n = 0; n < 3; ++n) graph->step(batch_at(n));
  const std::string text = graph_of(*graph).program_text();
  EXPECT_THAT(text, HasSubstr("%loss: Float[]"));
  EXPECT_THAT(text, HasSubstr("%a.weight"));
  EXPECT_THAT(text, HasSubstr("fused_adamw_"));
}

// A device graph has the kernels of its capture, and kernels of duet's are proved under the settings of then.
TEST(GraphExecutor, SettingsThatChooseKernelsMakeASignatureOfTheirOwn) {
  at::Context& settings = at::globalContext();
  const bool before = settings.userEnabledMkldnn();
  const auto back = c10::make_scope_exit([&] { settings.setUserEnabledMkldnn(before); });
  const auto graph = trainer_for("graph", plain_loss);
  for (const bool enabled : {true, false, true}) {
    settings.setUserEnabledMkldnn(enabled);
    for (int64_t n = 0; n < 4; ++n) graph->step(batch_at(n));
  }
  const auto report = graph_of(*graph).report();
  ASSERT_EQ(report.size(), 2U);
  for (const SignatureReport& signature : report) EXPECT_EQ(signature.state, "captured");
}

// Its draws are none of the step's, which has no random ops.
TEST(GraphExecutor, AThreadThatDrawsMeanwhileEndsNoRun) {
  const auto eager = trainer_for("eager", plain_loss);
  const auto graph = trainer_for("graph", plain_loss, {.verify_interval = 1});
  std::atomic<bool> stop = false;
  std::atomic<int64_t> draws = 0;
  std::thread other([&] {
    for (; !stop; ++draws) torch::rand({3});
  });
  for (int64_t n = 0; n < 200; ++n) {
    const int64_t before = draws;
    EXPECT_NO_THROW(graph->step(batch_at(n)));
    while (draws == before) std::this_thread::yield();
  }
  stop = true;
  other.join();
  for (int64_t n = 0; n < 200; ++n) eager->step(batch_at(n));
  expect_same_bits(eager->weights(), graph->weights());
}

// Two signatures take turns.
TEST(GraphExecutor, ChoosesAPathForEachSignatureAndRunsIt) {
  const auto train = [](bool captured) {
    seed_all(3);
    TrainStep step(make_task(std::make_shared<TwoLayers>(), plain_loss), at::kCPU, {.optimizer = SGD{.lr = 0.1}});
    GraphExecutor executor(step, at::kCPU, {});
    StepObserver observer;
    std::vector<StepPath> paths;
    for (int64_t n = 0; n < 12; ++n) {
      const MicroBatches micro_batches{.batches = {batch_at(n, n % 4 == 3 ? 5 : 8)}, .weights = {1}, .total = 1};
      step.begin(micro_batches);
      if (captured) {
        const StepPlan plan = executor.choose(micro_batches, observer);
        paths.push_back(plan.path);
        executor.run(plan, micro_batches, observer);
      } else {
        step.run(micro_batches, observer);
      }
      step.end();
    }
    if (captured) {
      const StepPath eager = StepPath::kEager, record = StepPath::kRecord, check = StepPath::kCheckAndReplay;
      const StepPath compare = StepPath::kReplayAndCompare;  // the second replay, then the second one after it, ...
      EXPECT_EQ(paths, (std::vector<StepPath>{eager, record, check, eager, compare, check, compare, record, check,
                                              check, check, check}));
    }
    StateDict weights;
    for (const auto& [name, tensor] : step.parameters()) weights.set(name, tensor.detach().clone());
    return weights;
  };
  expect_same_bits(train(false), train(true));
}

}  // namespace
}  // namespace duet
