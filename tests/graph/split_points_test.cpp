#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "core/hook.h"
#include "tests/graph/both_modes.h"

// The code of hooks inside a step: at split points between kernels, and captured.

namespace duet {
namespace {

using testing::batch_at;
using testing::expect_same_bits;
using testing::expect_same_in_both_modes;
using ::testing::HasSubstr;
using testing::MakeRun;
using testing::RunOutcome;
using testing::same_bits;
using testing::StepRun;

// A hook whose code inside the step is given by lambdas.
class LambdaHook : public Hook {
 public:
  using Code = std::function<void(TrainContext&)>;
  std::string name() const override { return "lambda"; }
  void after_backward(TrainContext& context) override {
    if (at_backward) at_backward(context);
  }
  void before_optimizer_step(TrainContext& context) override {
    if (at_optimizer) at_optimizer(context);
  }
  void in_step(StepView& context) override {
    if (captured) captured(context);
  }

  Code at_backward, at_optimizer;
  std::function<void(StepView&)> captured;
};

using Fill = std::function<void(LambdaHook& hook, StepRun& run)>;

// AdamW, clipping, dropout, and a hook.
MakeRun with_hook(const Fill& fill) {
  return [fill](StepRun& run) {
    run.options = {.optimizer = AdamW{.lr = 1e-2}, .clip_grad = ClipNorm{0.5, 2.0}};
    run.loss = [](testing::TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::dropout(torch::gelu(net.a(batch["input"])), 0.3, true);
      return torch::nn::functional::cross_entropy(net.b(hidden), batch["target"]);
    };
    const auto hook = std::make_shared<LambdaHook>();
    fill(*hook, run);
    run.between = [hook](BaseTrainer& trainer, int64_t n) {
      if (n == 0) trainer.add_hook(std::make_unique<LambdaHook>(*hook));
    };
  };
}
MakeRun with_hook_at_backward(const LambdaHook::Code& code) {
  return with_hook([code](LambdaHook& hook, StepRun&) { hook.at_backward = code; });
}

void expect_captured(const RunOutcome& outcome, int64_t replays = 12) {
  ASSERT_EQ(outcome.report.size(), 1U);
  EXPECT_EQ(outcome.report[0].state, "captured") << outcome.report[0].reason;
  EXPECT_EQ(outcome.report[0].replays, replays);
}

// Both modes; the weights must be equal, and with a hook that acts not those of a run without it.
RunOutcome expect_eager_weights(const MakeRun& set_up, int64_t steps = 14) {
  const auto without_hook = [&](StepRun& run) {
    set_up(run);
    run.between = nullptr;
  };
  RunOutcome graph = expect_same_in_both_modes(set_up, steps);
  const at::Tensor without = testing::run_in("eager", without_hook, steps).state.tensor("model.a.weight");
  EXPECT_FALSE(same_bits(without, graph.state.tensor("model.a.weight"))) << "the hook has no effect";
  return graph;
}

TEST(SplitPoints, SeeTheGradientsOfEagerOncePerStep) {
  for (const int64_t accumulate : {1, 3}) {
    int calls = 0;
    const MakeRun set_up = with_hook([&](LambdaHook& hook, StepRun& run) {
      run.options.loop.accumulate = accumulate;
      hook.at_backward = hook.at_optimizer = [&calls, seen = run.seen](TrainContext& context) {
        ++calls;
        for (const auto& item : context.task.named_parameters()) seen->push_back(item.second.grad().clone());
        seen->push_back(context.step.loss().clone());
        if (context.step.result->grad_norm.defined()) seen->push_back(context.step.result->grad_norm.clone());
      };
    });
    const RunOutcome outcome = expect_same_in_both_modes(set_up, 14);
    EXPECT_EQ(calls, 2 * 28);
    EXPECT_EQ(outcome.seen.size(), 28U * 5 + 14) << "the norm is there before the optimizer";
    expect_captured(outcome);
    EXPECT_THAT(outcome.program, HasSubstr("split point"));
  }
}

TEST(SplitPoints, WhatAHookChangesInPlaceCounts) {
  for (const bool clip : {false, true}) {
    expect_captured(expect_eager_weights(with_hook([clip](LambdaHook& hook, StepRun& run) {
      if (!clip) run.options.clip_grad = {};
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
    })));
  }
}

// A teacher's weights, a coefficient of the loss: comparisons run the step twice.
TEST(SplitPoints, WhatAHookChangesOfWhatAStepOnlyReadsCounts) {
  for (const bool frozen : {false, true}) {
    expect_captured(expect_same_in_both_modes(
        [frozen](StepRun& run) {
          const at::Tensor scale = torch::ones({}), read = frozen ? run.net->a->weight : scale;
          if (frozen) read.requires_grad_(false);
          with_hook_at_backward([read](TrainContext&) { read.mul_(0.95); })(run);
          run.loss = [scale](testing::TwoLayers& net, const Batch& batch) { return plain_loss(net, batch) * scale; };
        },
        14));
  }
}

// The rest of such a step runs op by op, whatever is compared meanwhile.
TEST(SplitPoints, AGradientThatIsNotTheRecordedOneAtSomeStepsCounts) {
  using Code = std::function<void(const NamedTensors&)>;
  const std::map<std::string, Code> codes = {
      {"removed", [](const NamedTensors& all) { all[1].second.mutable_grad().reset(); }},
      {"replaced", [](const NamedTensors& all) { all[0].second.mutable_grad() = all[0].second.grad() * 2 + 0.01; }},
      {"given other memory", [](const NamedTensors& all) { all[0].second.grad().set_data(all[0].second.grad() * 2); }},
      {"one over another's memory",
       [](const NamedTensors& all) {
         all[1].second.mutable_grad() = all[0].second.mutable_grad().view({-1}).narrow(0, 0, all[1].second.numel());
       }},
      {"other strides", [](const NamedTensors& all) {
         at::Tensor& gradient = all[0].second.mutable_grad();
         gradient = gradient.t().contiguous().t().mul(0.3);
       }}};
  for (const auto& [name, code] : codes) {
    for (const auto& [at_optimizer, scales, verify] :
         {std::tuple(false, false, 0), {false, true, 1}, {true, false, 1}}) {
      SCOPED_TRACE(c10::str(name, at_optimizer ? ", at the optimizer" : "", scales ? ", scaled" : "", ", ", verify));
      const MakeRun set_up = with_hook([&](LambdaHook& hook, StepRun& run) {
        if (scales) run.options.loss_scale = LossScaleOptions{.init_scale = 1024, .growth_interval = 4};
        run.graph.verify_interval = verify;
        (at_optimizer ? hook.at_optimizer : hook.at_backward) = [&code](TrainContext& context) {
          if (context.progress.step >= 7 && context.progress.step % 3 != 0) code(context.task.named_parameters());
        };
      });
      EXPECT_GT(expect_eager_weights(set_up, 20).total(&SignatureReport::replays), 0);
    }
  }
}

// As DINO's last layer, whose gradients are removed in the first epoch.
TEST(SplitPoints, AGradientThatIsRemovedAtFirstIsCapturedLater) {
  const MakeRun set_up = with_hook_at_backward([](TrainContext& context) {
    if (context.progress.step < 100) context.task.named_parameters()[1].second.mutable_grad().reset();
  });
  const RunOutcome graph = expect_eager_weights(set_up, 300);
  EXPECT_GT(graph.total(&SignatureReport::replays), 0);
  EXPECT_THAT(graph.reasons(), HasSubstr("the gradient of 'a.bias'"));
}

// Hooks have acted when the code inside the step turns out to be another, or throws: nothing of the step comes twice.
TEST(SplitPoints, WhatHooksDidCountsWhereTheCodeAfterThemDiffers) {
  struct Seen {
    StateDict state;
    at::Tensor mean;
    std::vector<std::string> errors;
    int64_t calls = 0;
  };
  for (const Check check : {Check::kEvery, Check::kOff}) {
    for (const int64_t verify : {1, 1024}) {
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

// An exponential mean of the weights in tensors that only the hook knows.
TEST(InStep, AMeanOfTheWeightsIsCapturedAndEqual) {
  for (const bool with_split_points : {false, true}) {
    const RunOutcome outcome = expect_same_in_both_modes(
        with_hook([&](LambdaHook& hook, StepRun& run) {
          hook.captured = [means = run.seen](StepView& context) {
            if (means->empty()) {
              for (const auto& item : context.parameters) means->push_back(at::zeros_like(item.second));
            }
            for (std::size_t i = 0; i < means->size(); ++i) {
              context.parameters[i].second.clamp_(-0.2, 0.2);
              (*means)[i].lerp_(context.parameters[i].second.detach(), 0.1);
              (*means)[i].add_(at::rand_like((*means)[i]) * context.output.loss * 1e-3);
            }
          };
          if (!with_split_points) return;
          hook.at_backward = [net = run.net](TrainContext&) { net->a->weight.mutable_grad().mul_(0.5); };
        }),
        14);
    expect_captured(outcome);
    EXPECT_THAT(outcome.program, HasSubstr("aten::lerp_"));
  }
}

}  // namespace
}  // namespace duet
