#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "core/hook.h"
#include "graph/explain/code_place.h"
#include "hooks/ema_hook.h"
#include "optim/optimizers/optimizer_kind.h"
#include "tests/support/expect_error.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

// What graph mode says of a step before training: everything, and without a trace of it in the trainer's state.

namespace duet {
namespace {

using Reach = StepExplanation::Reach;
using ::testing::AllOf;
using testing::batch_at;
using ::testing::Contains;
using testing::expect_same_bits;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::plain_loss;
using testing::same_bits;
using testing::TwoLayers;

using Loss = std::function<at::Tensor(TwoLayers&, const Batch&)>;

std::unique_ptr<BaseTrainer> trainer_of(const Loss& loss, const TrainerOptions& options = {},
                                        const GraphOptions& graph = {}) {
  seed_all(3);
  return testing::make_trainer("graph", make_task(std::make_shared<TwoLayers>(), loss), options, graph);
}

// A copy of everything that a resume needs.
StateDict copied_state(const BaseTrainer& trainer) {
  StateDict copy;
  const StateDict live = trainer.state_dict();
  for (const auto& [name, tensor] : live.tensors()) copy.set(name, tensor.clone());
  for (const auto& [name, value] : live.values()) copy.set(name, value);
  return copy;
}

void expect_same_state(const StateDict& a, const StateDict& b) {
  expect_same_bits(a, b);
  EXPECT_EQ(a.values(), b.values());
}

Reach reach_of(const StepExplanation& explanation, const std::string& name, std::size_t group = 0) {
  for (const auto& number : explanation.hyper_parameters) {
    if (number.name == name && number.group == group) return number.reach;
  }
  ADD_FAILURE() << name << " is not among the hyper-parameters";
  return Reach::kUntried;
}

auto obstacle(const std::string& op, const std::string& function) {
  using Obstacle = StepExplanation::Obstacle;
  return AllOf(Field(&Obstacle::op, op), Field(&Obstacle::source, HasSubstr(function)),
               Field(&Obstacle::way_out, Not(IsEmpty())));
}

[[gnu::noinline]] at::Tensor scaled_by_its_mean(const at::Tensor& x) { return x * (1 + 0 * x.mean().item<double>()); }

[[gnu::noinline]] at::Tensor loss_over_hits(const at::Tensor& logits, const at::Tensor& target) {
  const at::Tensor all = torch::nn::functional::cross_entropy(
      logits, target, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  const at::Tensor hits = logits.argmax(1) >= 0;
  return all.index({hits}).mean() + 0 * hits.nonzero().sum();
}

at::Tensor loss_with_obstacles(TwoLayers& net, const Batch& batch) {
  at::Tensor hidden = torch::relu(net.a(batch["input"]));
  for (int i = 0; i < 3; ++i) hidden = scaled_by_its_mean(hidden);
  return loss_over_hits(net.b(hidden), batch["target"]);
}

TEST(Explain, NamesEveryObstacleWithTheCodeThatItComesFrom) {
  const auto trainer = trainer_of(loss_with_obstacles);
  const StepExplanation explanation = trainer->explain(batch_at(0));
  EXPECT_FALSE(explanation.captured);
  EXPECT_EQ(explanation.reason, "");
  const auto& found = explanation.obstacles;
  EXPECT_THAT(found, Contains(obstacle("aten::_local_scalar_dense", "scaled_by_its_mean")));
  EXPECT_THAT(found, Contains(obstacle("aten::index.Tensor", "loss_over_hits")));
  EXPECT_THAT(found, Contains(obstacle("aten::nonzero", "loss_over_hits")));
  const auto item =
      std::find_if(found.begin(), found.end(), [](const auto& each) { return each.op == "aten::_local_scalar_dense"; });
  ASSERT_NE(item, found.end());
  EXPECT_THAT(item->where, HasSubstr("'a."));
  int64_t times = 0;
  for (const auto& each : found) times += each.op == item->op ? each.times : 0;
  EXPECT_EQ(times, 3);
  EXPECT_THAT(explanation.text(), AllOf(HasSubstr("loss_over_hits"), HasSubstr("aten::nonzero"), HasSubstr("do: ")));
}

TEST(Explain, WhatItFoundIsWhatTheFallbackSays) {
  const auto trainer = trainer_of(loss_with_obstacles);
  const StepExplanation explanation = trainer->explain(batch_at(0));
  for (int64_t n = 0; n < 3; ++n) trainer->step(batch_at(n));
  const std::string reason = dynamic_cast<GraphTrainer&>(*trainer).report()[0].reason;
  EXPECT_THAT(reason, HasSubstr(explanation.obstacles.front().what));
}

TEST(Explain, FindsWhatComesBehindABatchThatIsWrittenInto) {
  const auto trainer = trainer_of([](TwoLayers& net, const Batch& batch) {
    batch["input"].mul_(0.5);
    batch["input"].add_(1);
    const at::Tensor loss = plain_loss(net, batch);
    loss.item<float>();
    return loss;
  });
  const Batch batch = batch_at(0);
  const at::Tensor before = batch["input"].clone();
  const StepExplanation explanation = trainer->explain(batch);
  EXPECT_EQ(explanation.obstacles.size(), 3U);
  EXPECT_THAT(explanation.text(), AllOf(HasSubstr("(aten::mul_"), HasSubstr("(aten::add_"), HasSubstr("a value back")));
  EXPECT_TRUE(same_bits(batch["input"], before)) << "the batch belongs to the caller";
}

TEST(Explain, StrictGraphsAreExplainedToo) {
  const auto trainer = trainer_of(loss_with_obstacles, {}, {.fallback = Fallback::kStrict});
  EXPECT_GE(trainer->explain(batch_at(0)).obstacles.size(), 3U);
}

// Batch norm, dropout, AdamW that follows schedules and skips, clipping, micro-batches, an average inside the step.
std::unique_ptr<BaseTrainer> rich_trainer() {
  seed_all(11);
  TrainerOptions options;
  options.optimizer = AdamW{.lr = 1e-2, .weight_decay = 0.1};
  options.schedules = {Linear{.start_factor = 0.1, .end = 6}};
  options.clip_grad = ClipNorm{.max_norm = 1.0};
  options.non_finite = NonFinite::kSkip;
  auto trainer = testing::make_trainer("graph", testing::cnn_task().make(), options);
  trainer->add_hook(std::make_unique<EMAHook>());
  return trainer;
}

std::vector<Batch> rich_batches(int64_t n) {
  const testing::ToyTask task = testing::cnn_task();
  return {task.batch(4, static_cast<uint64_t>(2 * n)), task.batch(4, static_cast<uint64_t>(2 * n + 1))};
}

TEST(Explain, ChangesNothing) {
  const auto plain = rich_trainer();
  StateDict expected;
  for (int64_t n = 0; n < 12; ++n) plain->step(rich_batches(n));
  expected = copied_state(*plain);

  const auto trainer = rich_trainer();
  for (int64_t n = 0; n < 12; ++n) {
    if (n == 0 || n == 1 || n == 7) {
      const StateDict before = copied_state(*trainer);
      const StepResult result = trainer->result();
      const at::Tensor loss = result.loss.defined() ? result.loss.clone() : at::Tensor();
      NamedTensors gradients;
      for (const auto& [name, tensor] : trainer->task().named_parameters()) {
        if (tensor.grad().defined()) gradients.emplace_back(name, tensor.grad().clone());
      }
      const StepExplanation explanation = trainer->explain(rich_batches(n));
      EXPECT_TRUE(explanation.captured) << explanation.text();
      EXPECT_EQ(explanation.left_out.empty(), n > 0) << "the average is ready with the first step of a run";
      expect_same_state(before, copied_state(*trainer));
      EXPECT_TRUE(!loss.defined() || same_bits(loss, trainer->result().loss));
      std::size_t next = 0;
      for (const auto& [name, tensor] : trainer->task().named_parameters()) {
        if (!tensor.grad().defined()) continue;
        ASSERT_LT(next, gradients.size());
        EXPECT_TRUE(same_bits(tensor.grad(), gradients[next++].second)) << name;
      }
      EXPECT_EQ(next, gradients.size());
    }
    trainer->step(rich_batches(n));
  }
  expect_same_state(expected, copied_state(*trainer));
}

// Unused parameters part the step counts in the first step, loss scales change by what they see, buffers start
// undamped.
TEST(Explain, ChangesNothingInAnyModelOrOptimizer) {
  const std::vector<OptimizerOptions> optimizers = {SGD{.lr = 0.05, .momentum = 0.9, .dampening = 0.5},
                                                    AdamW{.lr = 1e-2},
                                                    Adagrad{.lr = 1e-2},
                                                    RMSprop{.lr = 1e-3},
                                                    NAdam{.lr = 1e-3},
                                                    RAdam{.lr = 1e-3},
                                                    Lion{.lr = 1e-3},
                                                    Muon{.lr = 1e-3},
                                                    Adadelta{},
                                                    Adafactor{.lr = 1e-3},
                                                    Adamax{.lr = 1e-3},
                                                    ASGD{.lr = 1e-3},
                                                    Rprop{.lr = 1e-3}};
  const auto& tasks = testing::all_toy_tasks();
  for (std::size_t i = 0; i < std::max(tasks.size(), optimizers.size()); ++i) {
    const testing::ToyTask& task = tasks[i % tasks.size()];
    TrainerOptions options;
    options.optimizer = optimizers[i % optimizers.size()];
    SCOPED_TRACE(task.name + " " + options.optimizer.type());
    options.schedules = {Linear{.start_factor = 0.1, .end = 6}};
    if (i % 3 == 0) options.loss_scale = LossScaleOptions{};
    if (i % 3 == 1) options.non_finite = NonFinite::kRaise;
    StateDict states[2];
    for (const bool explains : {false, true}) {
      seed_all(7);
      const auto trainer = testing::make_trainer("graph", task.make(), options);
      for (int64_t n = 0; n < 6; ++n) {
        const Batch batch = task.batch(4, static_cast<uint64_t>(n));
        if (explains && (n == 0 || n == 4)) {
          const StateDict before = copied_state(*trainer);
          EXPECT_TRUE(trainer->explain(batch).captured);
          expect_same_state(before, copied_state(*trainer));
        }
        trainer->step(batch);
      }
      states[explains] = copied_state(*trainer);
    }
    expect_same_state(states[0], states[1]);
  }
}

TEST(Explain, GivesBackTensorsAndGeneratorsThatTheTrainerDoesNotKnow) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const at::Tensor seen = torch::zeros({5});
  const auto trainer = trainer_of([&](TwoLayers& net, const Batch& batch) {
    const at::Tensor logits = net.forward(batch["input"]);
    {
      const at::NoGradGuard no_grad;
      seen.add_(logits.mean(0));
    }
    const at::Tensor noise = torch::zeros_like(logits).uniform_(0, 1, generator);
    return torch::nn::functional::cross_entropy(logits + 0.01 * noise, batch["target"]);
  });
  const at::Tensor state = generator.get_state();
  EXPECT_TRUE(trainer->explain(batch_at(0)).captured);
  EXPECT_TRUE(same_bits(seen, torch::zeros({5})));
  EXPECT_TRUE(same_bits(generator.get_state(), state));
}

TEST(Explain, GivesTheStateBackAfterAnErrorOfTheTask) {
  int calls = 0;
  const auto trainer = trainer_of([&calls](TwoLayers& net, const Batch& batch) {
    if (++calls == 3) throw std::runtime_error("broken");
    return plain_loss(net, batch);
  });
  const StateDict before = copied_state(*trainer);
  EXPECT_THROW(trainer->explain(batch_at(0)), std::runtime_error);
  expect_same_state(before, copied_state(*trainer));
  trainer->step(batch_at(0));
}

TEST(Explain, EveryNumberOfAnOptimizerReachesItsCapture) {
  for (const OptimizerOptions& optimizer :
       {OptimizerOptions(AdamW{.lr = 1e-2, .weight_decay = 0.1}), OptimizerOptions(SGD{.lr = 0.1, .momentum = 0.9})}) {
    TrainerOptions options;
    options.optimizer = optimizer;
    options.schedules = {Linear{.start_factor = 0.1, .end = 6}};
    const auto trainer = trainer_of(plain_loss, options);
    const StepExplanation explanation = trainer->explain(batch_at(0));
    EXPECT_FALSE(explanation.hyper_parameters.empty());
    for (const auto& number : explanation.hyper_parameters) {
      EXPECT_EQ(number.reach, Reach::kChanges) << optimizer.type() << " " << number.name;
    }
  }
}

// Takes its rate to the host, where a recording freezes it, and has another number that it never looks at.
OptimizerOptions sabotaged() {
  OptimizerKind kind{.name = "Sabotaged"};
  kind.slots = [](const OptimizerOptions&) { return std::vector<StateSlot>(); };
  kind.numbers = [](const OptimizerOptions&) {
    return std::map<std::string, double>{{"lr", 0.1}, {"weight_decay", 0.1}, {"unused", 0.5}};
  };
  kind.kernel = [](const KernelCall& call, const OptimizerOptions&) {
    kernel_math::decay_parameters(call);
    for (std::size_t i = 0; i < call.parameters.size(); ++i) {
      call.parameters[i].sub_(call.gradients[i], call.host_number("lr"));
    }
  };
  return std::make_shared<const OptimizerKind>(kind);
}

TEST(Explain, FindsAFrozenHyperParameter) {
  TrainerOptions options;
  options.optimizer = sabotaged();
  const auto trainer = trainer_of(plain_loss, options);
  const StepExplanation explanation = trainer->explain(batch_at(0));
  EXPECT_TRUE(explanation.captured) << explanation.text();
  // It decays by lr * weight_decay, with the tensor: the product reaches the capture, the step along the gradient not.
  EXPECT_EQ(reach_of(explanation, "weight_decay"), Reach::kChanges);
  EXPECT_EQ(reach_of(explanation, "unused"), Reach::kNothingAtAll);
}

OptimizerOptions frozen_rate() {
  OptimizerKind kind{.name = "FrozenRate"};
  kind.slots = [](const OptimizerOptions&) { return std::vector<StateSlot>(); };
  kind.numbers = [](const OptimizerOptions&) { return std::map<std::string, double>{{"lr", 0.1}}; };
  kind.kernel = [](const KernelCall& call, const OptimizerOptions&) {
    for (std::size_t i = 0; i < call.parameters.size(); ++i) {
      call.parameters[i].sub_(call.gradients[i], call.host_number("lr"));
    }
  };
  return std::make_shared<const OptimizerKind>(kind);
}

TEST(Explain, ARateThatIsReadOnTheHostIsFrozen) {
  TrainerOptions options;
  options.optimizer = frozen_rate();
  const auto trainer = trainer_of(plain_loss, options);
  const StepExplanation explanation = trainer->explain(batch_at(0));
  EXPECT_EQ(reach_of(explanation, "lr"), Reach::kFrozen);
  EXPECT_THAT(explanation.text(), HasSubstr("FROZEN, set() has no effect on the captured step: lr of group 0"));
}

TEST(Explain, WhatDoesNothingInEagerIsNotFrozen) {
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.1, .weight_decay = 0.5};
  seed_all(3);
  const auto net = std::make_shared<TwoLayers>();
  for (at::Tensor& parameter : net->parameters()) {
    const at::NoGradGuard no_grad;
    parameter.zero_();
  }
  const auto trainer = testing::make_trainer(
      "graph", make_task(net, [](TwoLayers& model, const Batch& batch) { return 0 * plain_loss(model, batch); }),
      options);
  const StepExplanation explanation = trainer->explain(batch_at(0));
  EXPECT_TRUE(explanation.captured);
  EXPECT_EQ(reach_of(explanation, "weight_decay"), Reach::kNothingAtAll);
}

TEST(Explain, NamesTheHooksThatSplitTheStepAndDoesNotCallThem) {
  const auto trainer = trainer_of(plain_loss);
  int calls = 0;
  trainer->on(HookPoint::kAfterBackward, [&calls](TrainContext&) { ++calls; }, "watcher");
  trainer->on(HookPoint::kBeforeOptimizerStep, [&calls](TrainContext&) { ++calls; }, "other");
  const StepExplanation explanation = trainer->explain(batch_at(0));
  ASSERT_EQ(explanation.splits.size(), 2U);
  EXPECT_EQ(explanation.splits[0].point, "after_backward");
  EXPECT_EQ(explanation.splits[0].hooks, std::vector<std::string>{"watcher"});
  EXPECT_EQ(explanation.splits[1].hooks, std::vector<std::string>{"other"});
  EXPECT_TRUE(explanation.captured);
  EXPECT_EQ(calls, 0);
}

TEST(Explain, CountsOpsBeforeAndAfterEachPass) {
  const auto trainer = trainer_of(plain_loss);
  const StepExplanation explanation = trainer->explain(batch_at(0));
  EXPECT_GT(explanation.ops.instructions, 0);
  EXPECT_GE(explanation.ops.needed, explanation.ops.instructions);
  EXPECT_GT(explanation.ops.recorded, explanation.ops.needed) << "views are made once";
  EXPECT_GT(explanation.bytes, 0);
  EXPECT_GT(explanation.replay_us, 0);
  EXPECT_GT(explanation.eager_us, 0);
  EXPECT_FALSE(explanation.keeps_tensors);
  EXPECT_EQ(explanation.changes, "");
}

TEST(Explain, SaysWhoKeepsTensorsAndWhatChangesFromStepToStep) {
  at::Tensor kept;
  int calls = 0;
  const auto trainer = trainer_of([&](TwoLayers& net, const Batch& batch) {
    const at::Tensor logits = net.forward(batch["input"]);
    kept = logits.detach() * 2;
    return torch::nn::functional::cross_entropy(logits, batch["target"]) * static_cast<double>(++calls);
  });
  const StepExplanation explanation = trainer->explain(batch_at(0));
  EXPECT_TRUE(explanation.keeps_tensors);
  EXPECT_THAT(explanation.changes, HasSubstr("aten::mul"));
  EXPECT_THAT(explanation.text(), HasSubstr("somebody keeps tensors"));
}

TEST(Explain, EagerModeSaysThatNothingIsCaptured) {
  const auto trainer = testing::make_trainer("eager", testing::mlp_task().make());
  const StepExplanation explanation = trainer->explain(batch_at(0));
  EXPECT_FALSE(explanation.captured);
  EXPECT_THAT(explanation.reason, HasSubstr("mode eager captures nothing"));
  EXPECT_THROW(trainer->explain(std::vector<Batch>()), DataError);
}

TEST(Explain, FunctionNamesAreShort) {
  EXPECT_EQ(short_function_name("duet::(anonymous namespace)::loss(at::Tensor const&, int)"), "duet::loss");
  EXPECT_EQ(short_function_name("float at::Tensor::item<float>() const"), "at::Tensor::item");
  EXPECT_EQ(
      short_function_name("main::{lambda(Net&, duet::Batch const&)#1}::operator()(Net&, duet::Batch const&) const"),
      "main::{lambda}");
  EXPECT_EQ(short_function_name("std::_Function_handler<at::Tensor (Net&, duet::Batch const&), app::make_loss(double)::"
                                "{lambda((anonymous namespace)::Net&)#2}>::_M_invoke(std::_Any_data const&)"),
            "app::make_loss::{lambda}");
  EXPECT_EQ(short_function_name("Net::forward(at::Tensor) [clone .part.0]"), "Net::forward");
}

}  // namespace
}  // namespace duet
