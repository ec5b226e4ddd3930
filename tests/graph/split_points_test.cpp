#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "core/hook.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

// The code of hooks inside a step: at split points between kernels, and captured.

namespace duet {
namespace {

using at::Tensor;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::same_bits;

Batch batch_at(int64_t n) { return testing::mlp_task().batch(8, static_cast<uint64_t>(n)); }

// A hook whose code inside the step is given by lambdas.
class LambdaHook : public Hook {
 public:
  using Code = std::function<void(TrainContext&)>;
  std::string name() const override { return "lambda"; }
  void after_backward(TrainContext& context) override {
    if (!at_backward) return Hook::after_backward(context);
    at_backward(context);
  }
  void before_optimizer_step(TrainContext& context) override {
    if (!at_optimizer) return Hook::before_optimizer_step(context);
    at_optimizer(context);
  }
  void in_step(StepView& context) override {
    if (!captured) return Hook::in_step(context);
    captured(context);
  }

  Code at_backward, at_optimizer;
  std::function<void(StepView&)> captured;
};

struct SplitSetting {
  std::function<void(LambdaHook&)> fill;
  int64_t steps = 14;
  int64_t accumulate = 1;
  bool clip = true;
  bool scales = false;
  GraphOptions graph{};
};

struct SplitOutcome {
  StateDict state;
  std::vector<SignatureReport> report;
  std::string program;
};

SplitOutcome run(const std::string& mode, const SplitSetting& setting) {
  seed_all(3);
  TrainerOptions options;
  options.optimizer = AdamW{.lr = 1e-2};
  if (setting.clip) options.clip_grad = ClipNorm{0.5, 2.0};
  if (setting.scales) options.loss_scale = LossScaleOptions{.init_scale = 1024, .growth_interval = 4};
  const auto trainer = testing::make_trainer(mode, testing::mlp_task().make(), options, setting.graph);
  auto hook = std::make_unique<LambdaHook>();
  if (setting.fill) setting.fill(*hook);
  trainer->add_hook(std::move(hook));
  for (int64_t n = 0; n < setting.steps; ++n) {
    std::vector<Batch> micro_batches;
    for (int64_t i = 0; i < setting.accumulate; ++i) micro_batches.push_back(batch_at(10 * n + i));
    trainer->step(micro_batches);
  }
  SplitOutcome outcome{trainer->state_dict(), {}, {}};
  if (const auto* graph = dynamic_cast<GraphTrainer*>(trainer.get())) {
    outcome.report = graph->report();
    outcome.program = graph->program_text();
  }
  return outcome;
}

void expect_captured(const SplitOutcome& outcome, int64_t replays = 12) {
  ASSERT_EQ(outcome.report.size(), 1U);
  EXPECT_EQ(outcome.report[0].state, "captured") << outcome.report[0].reason;
  EXPECT_EQ(outcome.report[0].replays, replays);
}

NamedTensors gradients_of(TrainContext& context) {
  NamedTensors copies;
  for (const auto& [name, tensor] : context.task.named_parameters()) copies.emplace_back(name, tensor.grad().clone());
  copies.emplace_back("loss", context.step.loss().clone());
  if (context.step.result->grad_norm.defined()) copies.emplace_back("norm", context.step.result->grad_norm.clone());
  return copies;
}

TEST(SplitPoints, SeeTheGradientsOfEagerOncePerStep) {
  for (const int64_t accumulate : {1, 3}) {
    std::vector<NamedTensors> seen[2];
    for (const std::string mode : {"eager", "graph"}) {
      auto& all = seen[mode == "graph"];
      SplitSetting setting;
      setting.accumulate = accumulate;
      setting.fill = [&all](LambdaHook& hook) {
        hook.at_backward = [&all](TrainContext& context) { all.push_back(gradients_of(context)); };
        hook.at_optimizer = hook.at_backward;
      };
      const SplitOutcome outcome = run(mode, setting);
      if (mode != "graph") continue;
      expect_captured(outcome);
      EXPECT_THAT(outcome.program, HasSubstr("split point"));
    }
    ASSERT_EQ(seen[0].size(), 28U);
    ASSERT_EQ(seen[1].size(), 28U);
    for (std::size_t n = 0; n < seen[0].size(); ++n) {
      ASSERT_EQ(seen[0][n].size(), seen[1][n].size());
      for (std::size_t i = 0; i < seen[0][n].size(); ++i) {
        EXPECT_TRUE(same_bits(seen[0][n][i].second, seen[1][n][i].second)) << seen[0][n][i].first << " at call " << n;
      }
    }
  }
}

// Both modes; the weights must be equal, and with a hook that acts not those of a run without it.
SplitOutcome expect_eager_weights(const SplitSetting& setting) {
  const SplitOutcome eager = run("eager", setting);
  const SplitOutcome graph = run("graph", setting);
  expect_same_bits(eager.state, graph.state);
  SplitSetting without = setting;
  without.fill = nullptr;
  EXPECT_FALSE(same_bits(run("eager", without).state.tensor("model.a.weight"), eager.state.tensor("model.a.weight")))
      << "the hook has no effect, so nothing was tested";
  return graph;
}

TEST(SplitPoints, WhatAHookChangesInPlaceCounts) {
  for (const bool clip : {false, true}) {
    SplitSetting setting;
    setting.clip = clip;
    setting.fill = [](LambdaHook& hook) {
      hook.at_backward = [](TrainContext& context) {
        for (const auto& item : context.task.named_parameters())
          item.second.mutable_grad().mul_(0.5).add_(at::randn_like(item.second) * 0.1);
      };
      hook.at_optimizer = [](TrainContext& context) {
        const at::NoGradGuard no_grad;
        for (const auto& item : context.task.named_parameters()) {
          item.second.mutable_grad().clamp_(-0.05, 0.05);
          item.second.mul_(0.99);
        }
      };
    };
    expect_captured(expect_eager_weights(setting));
  }
}

TEST(SplitPoints, MayReadValuesBackToTheHost) {
  SplitSetting setting;
  setting.fill = [](LambdaHook& hook) {
    hook.at_backward = [](TrainContext& context) {
      for (const auto& item : context.task.named_parameters()) {
        if (item.second.grad().abs().max().item<double>() > 0.1) item.second.mutable_grad().mul_(0.5);
      }
      if (context.step.loss().item<double>() > 1.5) context.task.named_parameters()[0].second.mutable_grad().zero_();
    };
  };
  expect_captured(expect_eager_weights(setting));
}

TEST(SplitPoints, AReplacedGradientRunsEagerWithTheReason) {
  SplitSetting setting;
  setting.fill = [](LambdaHook& hook) {
    hook.at_backward = [](TrainContext& context) {
      for (const auto& item : context.task.named_parameters())
        item.second.mutable_grad() = item.second.grad() * 2 + 0.01;
    };
  };
  const SplitOutcome graph = expect_eager_weights(setting);
  EXPECT_EQ(graph.report.at(0).state, "eager");
  EXPECT_THAT(graph.report.at(0).reason, HasSubstr("gradient of 'a.weight'"));
}

// The rest of such a step runs op by op, whatever is compared meanwhile.
TEST(SplitPoints, AGradientThatIsNotTheRecordedOneAtSomeStepsCounts) {
  using Code = std::function<void(const NamedTensors&)>;
  const std::map<std::string, Code> codes = {
      {"removed", [](const NamedTensors& all) { all[1].second.mutable_grad().reset(); }},
      {"all but one removed",
       [](const NamedTensors& all) {
         for (std::size_t i = 1; i < all.size(); ++i) all[i].second.mutable_grad().reset();
       }},
      {"replaced", [](const NamedTensors& all) { all[0].second.mutable_grad() = all[0].second.grad() * 2 + 0.01; }},
      {"given other memory", [](const NamedTensors& all) { all[0].second.grad().set_data(all[0].second.grad() * 2); }},
      {"one over another's memory",
       [](const NamedTensors& all) {
         all[1].second.mutable_grad() = all[0].second.mutable_grad().view({-1}).narrow(0, 0, all[1].second.numel());
       }},
      {"other strides",
       [](const NamedTensors& all) {
         at::Tensor& gradient = all[0].second.mutable_grad();
         gradient = gradient.t().contiguous().t().mul(0.3);
       }},
      {"removed, others in place", [](const NamedTensors& all) {
         all[0].second.mutable_grad().mul_(0.25);
         all[1].second.mutable_grad().reset();
       }}};
  for (const auto& [name, code] : codes) {
    for (const auto& [at_optimizer, scales, verify] :
         {std::tuple(false, false, 0), {true, false, 0}, {false, true, 1}, {true, true, 1}, {true, false, 1}}) {
      SCOPED_TRACE(c10::str(name, at_optimizer ? ", at the optimizer" : "", scales ? ", scaled" : "", ", ", verify));
      SplitSetting setting;
      setting.scales = scales;
      setting.steps = 20;
      setting.graph.verify_interval = verify;
      setting.fill = [&, at_optimizer = at_optimizer, code = code](LambdaHook& hook) {
        (at_optimizer ? hook.at_optimizer : hook.at_backward) = [code](TrainContext& context) {
          if (context.progress.step >= 7 && context.progress.step % 3 != 0) code(context.task.named_parameters());
        };
      };
      const SplitOutcome graph = expect_eager_weights(setting);
      const bool captured = std::ranges::any_of(graph.report, [](const auto& report) { return report.replays > 0; });
      EXPECT_TRUE(captured) << graph.report.at(0).reason;
    }
  }
}

// As DINO's last layer, whose gradients are removed in the first epoch.
TEST(SplitPoints, AGradientThatIsRemovedAtFirstIsCapturedLater) {
  SplitSetting setting;
  setting.steps = 300;
  setting.fill = [](LambdaHook& hook) {
    hook.at_backward = [](TrainContext& context) {
      if (context.progress.step < 100) context.task.named_parameters()[1].second.mutable_grad().reset();
    };
  };
  const SplitOutcome graph = expect_eager_weights(setting);
  const bool captured = std::ranges::any_of(graph.report, [](const auto& report) { return report.replays > 0; });
  EXPECT_TRUE(captured) << graph.report.at(0).reason;
}

// Hooks have acted when the code inside the step turns out to be another, or throws: nothing of the step comes twice.
TEST(SplitPoints, WhatHooksDidCountsWhereTheCodeAfterThemDiffers) {
  struct Seen {
    StateDict state;
    at::Tensor mean;
    std::vector<std::string> errors;
    int64_t calls = 0;
  };
  for (const Check check : {Check::kEvery, Check::kBudget, Check::kOff}) {
    for (const int64_t verify : {0, 1, 1024}) {
      Seen seen[2];
      for (const std::string mode : {"eager", "graph"}) {
        SCOPED_TRACE(c10::str(mode, " ", static_cast<int>(check), " ", verify));
        Seen& now = seen[mode == "graph"];
        now.mean = at::zeros({8});
        std::set<int64_t> thrown;
        seed_all(3);
        const auto trainer = testing::make_trainer(mode, testing::mlp_task().make(), {.optimizer = AdamW{.lr = 1e-2}},
                                                   {.check = check, .verify_interval = verify});
        auto hook = std::make_unique<LambdaHook>();
        hook->at_backward = [&now](TrainContext& context) {
          ++now.calls;
          const auto all = context.task.named_parameters();
          all[0].second.mutable_grad().mul_(0.5);
          if (context.progress.step % 9 == 8) all[1].second.mutable_grad().reset();
          if (context.progress.step % 9 == 7) all[1].second.mutable_grad() = all[1].second.grad() * 2;
        };
        hook->captured = [&](StepView& view) {
          const int64_t step = now.calls;  // hooks have acted
          if (check == Check::kEvery && step % 11 == 10 && thrown.insert(step).second) throw std::domain_error("once");
          now.mean.add_(view.parameters[1].second.detach().narrow(0, 0, 8));
        };
        trainer->add_hook(std::move(hook));
        for (int64_t n = 0; n < 36; ++n) {
          if (n % 6 == 5 || n == 17) now.mean = now.mean.clone();
          try {
            trainer->step(batch_at(n));
          } catch (const std::domain_error& error) {
            now.errors.emplace_back(error.what());
          }
        }
        now.state = trainer->state_dict();
      }
      SCOPED_TRACE(c10::str(static_cast<int>(check), " ", verify));
      expect_same_bits(seen[0].state, seen[1].state);
      EXPECT_TRUE(same_bits(seen[0].mean, seen[1].mean));
      EXPECT_EQ(seen[0].errors, seen[1].errors);
      EXPECT_EQ(seen[0].calls, seen[1].calls);
    }
  }
}

TEST(SplitPoints, AHookThatComesLaterIsCalledFromThenOn) {
  StateDict states[2];
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    const auto trainer = testing::make_trainer(mode, testing::mlp_task().make());
    int calls = 0;
    for (int64_t n = 0; n < 14; ++n) {
      if (n == 6) {
        auto hook = std::make_unique<LambdaHook>();
        hook->at_backward = [&calls](TrainContext& context) {
          ++calls;
          context.task.named_parameters()[0].second.mutable_grad().mul_(0.5);
        };
        trainer->add_hook(std::move(hook));
      }
      trainer->step(batch_at(n));
    }
    EXPECT_EQ(calls, 8);
    states[mode == "graph"] = trainer->state_dict();
  }
  expect_same_bits(states[0], states[1]);
}

// An exponential mean of the weights in tensors that only the hook knows.
TEST(InStep, AMeanOfTheWeightsIsCapturedAndEqual) {
  for (const bool with_split_points : {false, true}) {
    NamedTensors means[2];
    StateDict states[2];
    for (const std::string mode : {"eager", "graph"}) {
      NamedTensors& mean = means[mode == "graph"];
      SplitSetting setting;
      setting.fill = [&](LambdaHook& hook) {
        hook.captured = [&mean](StepView& context) {
          if (mean.empty()) {
            for (const auto& [name, tensor] : context.parameters) mean.emplace_back(name, at::zeros_like(tensor));
          }
          for (std::size_t i = 0; i < mean.size(); ++i) {
            mean[i].second.lerp_(context.parameters[i].second.detach(), 0.1);
            mean[i].second.add_(at::rand_like(mean[i].second) * context.output.loss * 1e-3);
          }
        };
        if (with_split_points) {
          hook.at_backward = [](TrainContext& context) {
            context.task.named_parameters()[0].second.mutable_grad().mul_(0.5);
          };
        }
      };
      const SplitOutcome outcome = run(mode, setting);
      states[mode == "graph"] = outcome.state;
      if (mode == "graph") {
        expect_captured(outcome);
        EXPECT_THAT(outcome.program, HasSubstr("aten::lerp_"));
      }
    }
    expect_same_bits(states[0], states[1]);
    for (std::size_t i = 0; i < means[0].size(); ++i) {
      EXPECT_TRUE(same_bits(means[0][i].second, means[1][i].second)) << means[0][i].first;
    }
  }
}

TEST(InStep, MayChangeTheWeights) {
  SplitSetting setting;
  setting.fill = [](LambdaHook& hook) {
    hook.captured = [](StepView& context) {
      for (const auto& item : context.parameters) item.second.clamp_(-0.2, 0.2);
    };
  };
  expect_captured(expect_eager_weights(setting));
}

}  // namespace
}  // namespace duet
