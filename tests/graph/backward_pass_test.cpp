#include "graph/record/backward_pass.h"
#include <functional>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include "graph/record/op_recorder.h"
#include "tests/graph/both_modes.h"
#include "tests/graph/trap.h"

// A check of host code leaves a backward pass out where LibTorch's own code runs alone, and where it does runs it as
// before.

namespace duet {
namespace {

using testing::loss_of;
using testing::StepRun;
using testing::TwoLayers;

// Each pass of autograd's engine has the next number.
int64_t passes_so_far() {
  int64_t number = -1;
  const at::Tensor leaf = torch::ones({}, torch::requires_grad());
  const at::Tensor value = leaf * 1;
  value.register_hook([&number](const at::Tensor&) { number = torch::autograd::get_current_graph_task_id(); });
  value.backward();
  return number;
}

struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2};
  }
};

struct Scaling : torch::autograd::FunctionPostHook {
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    return {outputs[0] * 0.5};
  }
};

struct Case {
  std::string name;
  std::function<void(StepRun& run)> set_up;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// With a loss that hands what is computed in the middle through `middle`.
auto with(std::function<at::Tensor(TwoLayers& net, const at::Tensor& hidden)> middle) {
  return [middle = std::move(middle)](StepRun& run) {
    run.loss = [middle](TwoLayers& net, const Batch& batch) {
      return loss_of(net, middle(net, torch::relu(net.a(batch["input"]))), batch);
    };
  };
}

std::vector<Case> passes_of_libtorch() {
  return {
      {"ops of LibTorch", with([](TwoLayers&, const at::Tensor& hidden) { return torch::gelu(hidden) + hidden; })},
      {"dropout", with([](TwoLayers&, const at::Tensor& hidden) { return torch::dropout(hidden, 0.3, true); })},
      {"writes to a view", with([](TwoLayers&, const at::Tensor& hidden) {
         const at::Tensor copy = hidden.clone();
         copy.narrow(1, 0, 4).mul_(2);
         return copy;
       })},
      {"a part without gradients", with([](TwoLayers& net, const at::Tensor& hidden) {
         const torch::NoGradGuard guard;
         return hidden + net.a->bias.sum();
       })},
      {"several micro-batches", [](StepRun& run) { run.options.loop.accumulate = 3; }},
      {"clipping, a loss scale and AdamW",
       [](StepRun& run) {
         run.options.optimizer = AdamW{};
         run.options.clip_grad = ClipNorm{.max_norm = 0.1};
         run.options.loss_scale = LossScaleOptions{};
       }},
      {"a hook after the backward pass",
       [](StepRun& run) {
         run.between = [net = run.net](BaseTrainer& trainer, int64_t n) {
           const auto halve = [net](TrainContext&) {
             const torch::NoGradGuard guard;
             net->a->weight.grad().mul_(0.5);
           };
           if (n == 0) trainer.on(HookPoint::kAfterBackward, halve);
         };
       }},
  };
}

std::vector<Case> passes_with_other_code() {
  return {
      {"a gradient of a gradient", with([](TwoLayers& net, const at::Tensor& hidden) {
         const at::Tensor slope =
             torch::autograd::grad({hidden.square().sum()}, {net.a->weight}, {}, true, /*create_graph=*/true)[0];
         return hidden + slope.mean();
       })},
      {"a function of the user's", with([](TwoLayers&, const at::Tensor& hidden) { return Doubled::apply(hidden); })},
      {"a hook on a tensor", with([](TwoLayers&, const at::Tensor& hidden) {
         hidden.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
         return hidden;
       })},
      {"a hook on a node", with([](TwoLayers&, const at::Tensor& hidden) {
         hidden.grad_fn()->add_post_hook(std::make_unique<Scaling>());
         return hidden;
       })},
      {"a gradient that is retained", with([](TwoLayers&, const at::Tensor& hidden) {
         hidden.retain_grad();
         return hidden;
       })},
      {"a hook on a weight",
       [](StepRun& run) {
         run.net->a->weight.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
       }},
      {"a weight of nobody's", with([weight = torch::ones({}, torch::requires_grad())](
                                        TwoLayers&, const at::Tensor& hidden) { return hidden * weight; })},
  };
}

constexpr int64_t kSteps = 14;

// Of autograd's engine, in a step that is checked.
int64_t passes_in_checked_step(const Case& c) {
  std::vector<int64_t> passes;
  const auto set_up = [&](StepRun& run) {
    passes.clear();
    run.graph = {.check = Check::kEvery, .verify_interval = 0};
    c.set_up(run);
    run.between = [&passes, inner = run.between](BaseTrainer& trainer, int64_t n) {
      if (inner) inner(trainer, n);
      passes.push_back(passes_so_far());
    };
  };
  const testing::RunOutcome outcome = testing::expect_same_in_both_modes(set_up, kSteps);
  EXPECT_EQ(outcome.captured(), 1) << outcome.reasons();
  constexpr int64_t kOfTheTest = 1;
  return passes[kSteps - 1] - passes[kSteps - 2] - kOfTheTest;
}

class PassOfLibTorch : public ::testing::TestWithParam<Case> {};
TEST_P(PassOfLibTorch, IsLeftOutOfACheck) { EXPECT_EQ(passes_in_checked_step(GetParam()), 0); }
INSTANTIATE_TEST_SUITE_P(Kinds, PassOfLibTorch, ::testing::ValuesIn(passes_of_libtorch()));

class PassWithOtherCode : public ::testing::TestWithParam<Case> {};
TEST_P(PassWithOtherCode, RunsInACheck) { EXPECT_GT(passes_in_checked_step(GetParam()), 0); }
INSTANTIATE_TEST_SUITE_P(Kinds, PassWithOtherCode, ::testing::ValuesIn(passes_with_other_code()));

// Decays the weights in the step.
struct Decay : Hook {
  std::string name() const override { return "decay"; }
  void in_step(StepView& view) override {
    const double factor = ++calls < 9 ? 0.99 : 0.98;
    for (const auto& parameter : view.parameters) at::Tensor(parameter.second).mul_(factor);
  }
  int64_t calls = 0;
};

// From the ninth step on something else runs, though the ops up to the backward pass stay the same.
std::vector<Case> changes() {
  const auto from_ninth = [](std::function<at::Tensor(const at::Tensor& hidden, bool changed)> middle) {
    return [middle = std::move(middle)](StepRun& run) {
      run.loss = [middle, calls = 0](TwoLayers& net, const Batch& batch) mutable {
        return loss_of(net, middle(torch::relu(net.a(batch["input"])), ++calls >= 9), batch);
      };
    };
  };
  return {
      {"a part without gradients", from_ninth([](const at::Tensor& hidden, bool changed) {
         const at::AutoGradMode mode(!changed);
         return hidden * 2;
       })},
      {"half without gradients", from_ninth([](const at::Tensor& hidden, bool changed) {
         const at::Tensor first = hidden * 2;
         const at::AutoGradMode mode(!changed);
         return first + hidden * 3;
       })},
      {"a hook", from_ninth([](const at::Tensor& hidden, bool changed) {
         if (changed) hidden.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
         return hidden * 2;
       })},
      {"code after the optimizer",
       [](StepRun& run) {
         run.between = [](BaseTrainer& trainer, int64_t n) {
           if (n == 0) trainer.add_hook(std::make_unique<Decay>());
         };
       }},
  };
}

class Change : public ::testing::TestWithParam<Case> {};

TEST_P(Change, IsFoundWhereTheOpsBeforeTheBackwardPassStayTheSame) {
  const auto set_up = [](StepRun& run) {
    run.graph = {.check = Check::kEvery, .verify_interval = 0};
    GetParam().set_up(run);
  };
  const testing::RunOutcome outcome = testing::expect_same_in_both_modes(set_up, kSteps);
  EXPECT_EQ(outcome.error, "");
  EXPECT_GT(outcome.total(&SignatureReport::differing), 0) << outcome.reasons();
}

INSTANTIATE_TEST_SUITE_P(Kinds, Change, ::testing::ValuesIn(changes()));

TEST(HookOnAWeight, IsSeenAtTheStepWhereAnotherOneTakesItsPlace) {
  const auto set_up = [](StepRun& run) {
    run.graph = {.check = Check::kOff, .verify_interval = 0};
    run.between = [weight = run.net->a->weight, hook = 0U](BaseTrainer&, int64_t n) mutable {
      if (n % 10 != 0) return;
      if (n > 0) weight.remove_hook(hook);
      hook = n == 20 ? weight.register_hook([](const at::Tensor& gradient) { return gradient * 0; })
                     : weight.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
    };
  };
  const testing::RunOutcome outcome = testing::expect_same_in_both_modes(set_up, 40);
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.captured(), 2) << outcome.reasons();
}

// Of ops over `x`, of which those from `begin` to `end` are the pass that makes `gradient`.
bool makes_gradient_alone(const std::function<at::Tensor(const at::Tensor& x, at::Tensor& gradient)>& ops,
                          std::size_t begin, std::size_t end) {
  const at::Tensor x = torch::ones({4});
  at::Tensor gradient;
  OpRecorder recorder({{"x", x}});
  at::Tensor result;
  recorder.record([&] { result = ops(x, gradient); });
  recorder.pause();
  recorder.finish({result, gradient});
  const int value = recorder.program().table.find(gradient);
  EXPECT_GE(value, 0);
  return makes_gradients_alone(recorder.program(),
                               {.gradients_before = {-1}, .gradients_after = {value}, .begin = begin, .end = end});
}

TEST(GradientsAlone, AreAllThatLeavesSuchAPass) {
  using at::Tensor;
  const Tensor outside = torch::ones({4});
  const auto plain = [](const Tensor& x, Tensor& gradient) {
    const Tensor a = x * 2;
    gradient = a * 3 + 1;
    return gradient * a;
  };
  EXPECT_TRUE(makes_gradient_alone(plain, 1, 3));
  EXPECT_FALSE(makes_gradient_alone(plain, 0, 1)) << "it makes no gradient";
  EXPECT_FALSE(makes_gradient_alone(plain, 0, 3)) << "what it makes besides is used after it";
  EXPECT_FALSE(makes_gradient_alone(plain, 1, 4)) << "a result is made in it";
  const auto draws = [](const Tensor& x, Tensor& gradient) {
    const Tensor a = x * 2;
    return gradient = a * torch::bernoulli(x);
  };
  EXPECT_FALSE(makes_gradient_alone(draws, 1, 3));
  const auto writes = [](const Tensor& x, Tensor& gradient) {
    const Tensor a = x * 2;
    gradient = a.add_(1) * 3;
    return a;
  };
  EXPECT_FALSE(makes_gradient_alone(writes, 1, 3));
  const auto reads_outside = [&](const Tensor& x, Tensor& gradient) {
    const Tensor a = x * 2;
    gradient = a * outside;
    return a;
  };
  EXPECT_FALSE(makes_gradient_alone(reads_outside, 1, 2)) << "of a tensor that no op before it has used";
  Tensor kept;
  const auto keeps = [&](const Tensor& x, Tensor& gradient) {
    const Tensor a = x * 2;
    kept = a * 3;
    gradient = kept + 1;
    return a;
  };
  EXPECT_FALSE(makes_gradient_alone(keeps, 1, 3));
}

}  // namespace
}  // namespace duet
