#include <algorithm>
#include <map>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "core/hook.h"
#include "hooks/ema_hook.h"
#include "optim/optimizers/optimizer_kind.h"
#include "tests/graph/both_modes.h"
#include "tests/support/sample_state.h"

// What graph mode says of a step before training: everything, and without a trace of it in the trainer's state.

namespace duet {
namespace {

using Reach = StepExplanation::Reach;
using testing::batch_at;
using testing::graph_trainer;
using ::testing::HasSubstr;
using testing::plain_loss;
using testing::same_bits;
using testing::TwoLayers;

Reach reach_of(const StepExplanation& explanation, const std::string& name) {
  for (const auto& number : explanation.hyper_parameters) {
    if (number.name == name) return number.reach;
  }
  ADD_FAILURE() << name << " is not among the hyper-parameters";
  return Reach::kUntried;
}

at::Tensor loss_with_obstacles(TwoLayers& net, const Batch& batch) {
  batch["input"].mul_(0.5);
  at::Tensor hidden = torch::relu(net.a(batch["input"]));
  for (int i = 0; i < 3; ++i) hidden = hidden * (1 + 0 * hidden.mean().item<double>());
  const at::Tensor all = torch::nn::functional::cross_entropy(
      net.b(hidden), batch["target"], torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  const at::Tensor hits = all >= 0;
  return all.index({hits}).mean() + 0 * hits.nonzero().sum();
}

TEST(Explain, NamesEveryObstacleAndItsPlaceAlsoBehindABatchThatIsWrittenInto) {
  const auto trainer = graph_trainer(loss_with_obstacles);
  const Batch batch = batch_at(0);
  const at::Tensor before = batch["input"].clone();
  const StepExplanation explanation = trainer->explain(batch);
  EXPECT_TRUE(same_bits(batch["input"], before)) << "the batch belongs to the caller";
  EXPECT_FALSE(explanation.captured);
  EXPECT_EQ(explanation.reason, "");
  std::map<std::string, std::pair<int64_t, std::string>> found;
  for (const auto& each : explanation.obstacles) {
    EXPECT_NE(each.way_out, "") << each.what;
    found[each.op] = {found[each.op].first + each.times, each.where};
  }
  ASSERT_EQ(found.size(), 4U) << explanation.text();
  EXPECT_EQ(found["aten::_local_scalar_dense"].first, 3);
  EXPECT_THAT(found["aten::_local_scalar_dense"].second, HasSubstr("'a."));
  EXPECT_THAT(found["aten::mul_.Scalar"].second, HasSubstr("before the first"));
  for (const char* op : {"aten::index.Tensor", "aten::nonzero"}) {
    EXPECT_THAT(found[op].second, HasSubstr("'b.")) << op;
    EXPECT_THAT(explanation.text(), HasSubstr(op));
  }
}

// State, the last loss and the gradients.
StateDict everything_of(BaseTrainer& trainer) {
  StateDict all = copy_of(trainer.state_dict());
  if (trainer.result().loss.defined()) all.set("loss", trainer.result().loss.clone());
  for (const auto& [name, tensor] : trainer.task().named_parameters()) {
    if (tensor.grad().defined()) all.set("gradient." + name, tensor.grad().clone());
  }
  return all;
}

// State after 8 steps of two micro-batches, two of which were explained before: the one of `first`, and a replayed one.
StateDict trained(const testing::ToyTask& task, const TrainerOptions& options, bool explains, uint64_t first) {
  seed_all(7);
  const auto trainer = testing::make_trainer("graph", task.make(), options);
  trainer->add_hook(std::make_unique<EMAHook>());
  for (uint64_t n = 0; n < 8; ++n) {
    const std::vector<Batch> batches = {task.batch(4, 2 * n), task.batch(4, 2 * n + 1)};
    if (explains && (n == first || n == 5)) {
      const StateDict before = everything_of(*trainer);
      const StepExplanation explanation = trainer->explain(batches);
      EXPECT_TRUE(explanation.captured) << explanation.text();
      EXPECT_EQ(explanation.left_out.empty(), n > 0) << "the average is ready with the first step of a run";
      expect_same_state(before, everything_of(*trainer));
    }
    trainer->step(batches);
  }
  return copy_of(trainer->state_dict());
}

// Unused parameters part the step counts in the first step, loss scales change by what they see, buffers start
// undamped.
TEST(Explain, ChangesNothingInAnyModelOrOptimizer) {
  const std::vector<OptimizerOptions> optimizers = {SGD{.lr = 0.05, .momentum = 0.9, .dampening = 0.5},
                                                    AdamW{.lr = 1e-2},
                                                    Adagrad{.lr = 1e-2},
                                                    NAdam{.lr = 1e-3},
                                                    Muon{.lr = 1e-3},
                                                    Adafactor{.lr = 1e-3}};
  const auto& tasks = testing::all_toy_tasks();
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const testing::ToyTask& task = tasks[i % tasks.size()];
    TrainerOptions options{.optimizer = optimizers[i], .schedules = {Linear{.start_factor = 0.1, .end = 6}}};
    SCOPED_TRACE(task.name + " " + options.optimizer.type());
    if (i % 3 == 0) options.loss_scale = LossScaleOptions{};
    if (i % 3 == 1) options.non_finite = i == 1 ? NonFinite::kSkip : NonFinite::kRaise;
    if (i % 2 == 1) options.clip_grad = ClipNorm{.max_norm = 1.0};
    // Before the first step nothing is known of it, before the second it is about to be recorded.
    expect_same_state(trained(task, options, false, i % 2), trained(task, options, true, i % 2));
  }
}

TEST(Explain, LeavesStepCountsThatPartedInTraining) {
  seed_all(3);
  const auto net = std::make_shared<TwoLayers>();
  const auto trainer = testing::make_trainer("graph", make_task(net, plain_loss), {.optimizer = AdamW{}});
  for (int64_t n = 0; n < 8; ++n) {
    if (n == 4) net->a->bias.requires_grad_(false);
    trainer->step(batch_at(n));
  }
  const StateDict before = everything_of(*trainer);
  trainer->explain(batch_at(8));
  expect_same_state(before, everything_of(*trainer));
}

TEST(Explain, GivesBackTensorsAndGeneratorsThatTheTrainerDoesNotKnow) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const at::Tensor seen = torch::zeros({5});
  const auto trainer = graph_trainer([&](TwoLayers& net, const Batch& batch) {
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
  const auto trainer = graph_trainer([&calls](TwoLayers& net, const Batch& batch) {
    if (++calls == 3) throw std::runtime_error("broken");
    return plain_loss(net, batch);
  });
  const StateDict before = everything_of(*trainer);
  EXPECT_THROW(trainer->explain(batch_at(0)), std::runtime_error);
  expect_same_state(before, everything_of(*trainer));
  trainer->step(batch_at(0));
}

TEST(Explain, EveryNumberOfAnOptimizerReachesItsCapture) {
  const auto trainer = graph_trainer(plain_loss, {},
                                     {.optimizer = SGD{.lr = 0.1, .weight_decay = 0.1, .momentum = 0.9},
                                      .schedules = {Linear{.start_factor = 0.1, .end = 6}}});
  const StepExplanation explanation = trainer->explain(batch_at(0));
  EXPECT_FALSE(explanation.hyper_parameters.empty());
  for (const auto& number : explanation.hyper_parameters) EXPECT_EQ(number.reach, Reach::kChangesResult) << number.name;
  EXPECT_GT(explanation.ops.recorded, explanation.ops.needed) << "views are made once";
  EXPECT_GE(explanation.ops.needed, explanation.ops.instructions);
  EXPECT_GT(explanation.bytes, 0);
  EXPECT_GT(std::min(explanation.replay_us, explanation.eager_us), 0);
  EXPECT_FALSE(explanation.keeps_tensors);
  EXPECT_EQ(explanation.changes, "");
}

// Takes its rate to the host, where a recording freezes it, and has another number that it never looks at.
OptimizerOptions with_rate_on_the_host() {
  OptimizerKind kind{.name = "Sabotaged"};
  kind.slots = [](const OptimizerOptions&) { return std::vector<StateSlot>(); };
  kind.numbers = [](const OptimizerOptions&) { return std::map<std::string, double>{{"lr", 0.1}, {"unused", 0.5}}; };
  kind.kernel = [](const KernelCall& call, const OptimizerOptions&) {
    for (std::size_t i = 0; i < call.parameters.size(); ++i) {
      call.parameters[i].sub_(call.gradients[i], call.host_number("lr"));
    }
  };
  return std::make_shared<const OptimizerKind>(kind);
}

TEST(Explain, FindsAFrozenHyperParameter) {
  const auto trainer = graph_trainer(plain_loss, {}, {.optimizer = with_rate_on_the_host()});
  const StepExplanation frozen = trainer->explain(batch_at(0));
  EXPECT_TRUE(frozen.captured) << frozen.text();
  EXPECT_EQ(reach_of(frozen, "lr"), Reach::kFrozen);
  EXPECT_EQ(reach_of(frozen, "unused"), Reach::kNoEffect);
  EXPECT_THAT(frozen.text(), HasSubstr("FROZEN, set() has no effect on the captured step: lr of group 0"));
}

TEST(Explain, NamesTheHooksThatSplitTheStepAndDoesNotCallThem) {
  const auto trainer = graph_trainer(plain_loss);
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

TEST(Explain, SaysWhoKeepsTensorsAndWhatChangesFromStepToStep) {
  at::Tensor kept;
  int calls = 0;
  const auto trainer = graph_trainer([&](TwoLayers& net, const Batch& batch) {
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

}  // namespace
}  // namespace duet
