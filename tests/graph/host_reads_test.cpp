#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/detail/bits.h"
#include "base/error.h"
#include "core/hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

// Steps whose host code reads values back: what is captured of them, how often, and what is said.

namespace duet {
namespace {

using at::Tensor;
using testing::batch_at;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::plain_loss;
using testing::TwoLayers;

using Loss = std::function<Tensor(TwoLayers&, const Batch&)>;

std::unique_ptr<BaseTrainer> trainer_for(const std::string& mode, const Loss& loss, const GraphOptions& graph = {},
                                         const TrainerOptions& options = {}) {
  seed_all(3);
  return testing::make_trainer(mode, make_task(std::make_shared<TwoLayers>(), loss), options, graph);
}

Batch batch_of(int64_t step, int64_t value) {
  Batch batch = batch_at(step);
  batch.set("value", torch::full({1}, value, torch::kLong));
  return batch;
}

// Reads the batch's value, and uses it.
Tensor loss_of_value(TwoLayers& net, const Batch& batch) {
  const auto value = static_cast<double>(batch["value"].item<int64_t>());  // before the model runs
  return plain_loss(net, batch) * (1 + value / 10);
}

struct Run {
  std::unique_ptr<BaseTrainer> trainer;
  std::vector<SignatureReport> report;
};

// One step per value, in both modes with the same weights; what graph mode made of it.
Run run_values(const std::vector<int64_t>& values, const GraphOptions& options = {}, const Loss& loss = loss_of_value) {
  const auto eager = trainer_for("eager", loss);
  Run run{trainer_for("graph", loss, options), {}};
  for (std::size_t n = 0; n < values.size(); ++n) {
    const auto step = static_cast<int64_t>(n);
    const double expected = eager->step(batch_of(step, values[n])).loss.item<double>();
    EXPECT_EQ(expected, run.trainer->step(batch_of(step, values[n])).loss.item<double>()) << "step " << n;
  }
  run.trainer->finish();
  expect_same_bits(eager->state_dict(), run.trainer->state_dict());
  run.report = dynamic_cast<GraphTrainer&>(*run.trainer).report();
  return run;
}

int64_t captured(const std::vector<SignatureReport>& report) {
  return std::count_if(report.begin(), report.end(), [](const auto& each) { return each.state == "captured"; });
}

int64_t total(const std::vector<SignatureReport>& report, int64_t SignatureReport::* count) {
  int64_t sum = 0;
  for (const SignatureReport& each : report) sum += each.*count;
  return sum;
}

std::vector<int64_t> repeated(std::vector<int64_t> values, int64_t times) {
  std::vector<int64_t> all;
  for (int64_t n = 0; n < times; ++n) all.insert(all.end(), values.begin(), values.end());
  return all;
}

TEST(HostReads, AValueThatStaysTheSameCostsNoCapture) {
  const auto report = run_values(repeated({4}, 20)).report;
  ASSERT_EQ(report.size(), 1U);
  EXPECT_EQ(report[0].state, "captured");
  EXPECT_EQ(report[0].replays, 18);
  EXPECT_THAT(report[0].signature, HasSubstr(", reads 4"));
}

TEST(HostReads, ValuesThatTakeTurnsAreCapturedEach) {
  const auto report = run_values(repeated({1, 2}, 15)).report;
  ASSERT_EQ(report.size(), 2U);
  EXPECT_EQ(captured(report), 2);
  EXPECT_THAT(report[0].signature, HasSubstr(", reads 2"));  // the second step was recorded
  EXPECT_THAT(report[1].signature, HasSubstr(", reads 1"));
  EXPECT_EQ(total(report, &SignatureReport::eager_steps), 4);
  EXPECT_EQ(total(report, &SignatureReport::replays), 26);
  EXPECT_EQ(total(report, &SignatureReport::differing), 0);
  EXPECT_EQ(report[0].reason + report[1].reason, "");
}

TEST(HostReads, ValuesThatChangeAtEveryStepRunEagerSoonAndForGood) {
  std::vector<int64_t> values(60);
  for (std::size_t n = 0; n < values.size(); ++n) values[n] = static_cast<int64_t>(n);
  const auto report = run_values(values).report;
  ASSERT_EQ(report.size(), 1U);
  EXPECT_EQ(report[0].state, "eager");
  EXPECT_EQ(report[0].bytes, 0);
  EXPECT_EQ(report[0].eager_steps, 60);
  EXPECT_THAT(report[0].reason, HasSubstr("aten::_local_scalar_dense, before the first parameter is read, reads"));
  EXPECT_THAT(report[0].reason, HasSubstr("changes from step to step"));
  EXPECT_THAT(report[0].reason, HasSubstr("Task::graph_key"));
  EXPECT_THAT(report[0].signature, Not(HasSubstr("reads")));
}

TEST(HostReads, AValueThatComesBackStaysCapturedBesideOthersThatDoNot) {
  std::vector<int64_t> values;
  for (int64_t n = 0; n < 120; ++n) values.push_back(n % 4 == 3 ? n : 0);
  const auto report = run_values(values).report;
  ASSERT_EQ(report.size(), 2U);
  EXPECT_EQ(captured(report), 1);
  const bool first = report[0].state == "captured";
  EXPECT_THAT(report[first ? 0 : 1].signature, HasSubstr(", reads 0"));
  EXPECT_THAT(report[first ? 1 : 0].signature, HasSubstr(", reads other values"));
  EXPECT_THAT(report[first ? 1 : 0].reason, HasSubstr("changes from step to step"));
  EXPECT_GT(report[first ? 0 : 1].replays, 80);
  EXPECT_EQ(total(report, &SignatureReport::eager_steps) + total(report, &SignatureReport::replays), 120);
}

TEST(HostReads, ValuesThatChangeSeldomAreCapturedOneAfterTheOther) {
  std::vector<int64_t> values;
  for (int64_t n = 0; n < 10 * 260; ++n) values.push_back(n / 260);
  const auto report = run_values(values, {.verify_interval = 0}).report;
  EXPECT_LE(report.size(), 8U);
  EXPECT_EQ(captured(report), static_cast<int64_t>(report.size()));
  EXPECT_EQ(total(report, &SignatureReport::eager_steps), 20);
}

TEST(HostReads, TheByteBudgetHoldsForVariants) {
  const auto report = run_values(repeated({1, 1, 1, 2, 2, 2}, 4), {.cache_bytes = 1}).report;
  ASSERT_EQ(report.size(), 2U);
  EXPECT_EQ(captured(report), 1);
  EXPECT_GT(total(report, &SignatureReport::replays), 4);
}

TEST(HostReads, WeightsThatMoveDropEveryVariant) {
  for (const bool moves : {false, true}) {
    std::vector<StateDict> states;
    for (const std::string mode : {"eager", "graph"}) {
      seed_all(3);
      auto net = std::make_shared<TwoLayers>();
      const auto trainer = testing::make_trainer(mode, make_task(net, loss_of_value));
      for (int64_t n = 0; n < 30; ++n) {
        if (moves && n == 15) net->a->weight.set_data(torch::full({8, 16}, 0.1));
        trainer->step(batch_of(n, n % 2));
      }
      states.push_back(trainer->state_dict());
      if (mode == "eager") continue;
      const auto report = dynamic_cast<GraphTrainer&>(*trainer).report();
      EXPECT_EQ(captured(report), 2);
      EXPECT_EQ(total(report, &SignatureReport::eager_steps), moves ? 8 : 4);
    }
    expect_same_bits(states[0], states[1]);
  }
}

TEST(HostReads, WithoutAnyCheckTheValuesAreComparedNevertheless) {
  const GraphOptions unchecked{.check = Check::kOff, .verify_interval = 0};
  const auto report = run_values({1, 1, 1, 1, 2, 2, 2, 2, 1, 2, 1, 1, 2, 2, 3, 1}, unchecked).report;
  EXPECT_GE(captured(report), 2);
}

// The last check of the host code comes when the step has changed what it read.
TEST(HostReads, WhatTheStepChangesAfterwardsIsNoDifferenceInTheEnd) {
  std::vector<StateDict> states;
  for (const std::string mode : {"eager", "graph"}) {
    const Tensor turns = torch::zeros({});
    const auto loss = [turns](TwoLayers& net, const Batch& batch) {
      const bool odd = turns.item<double>() > 0;
      turns.mul_(-1).add_(1);
      return odd ? plain_loss(net, batch) * 2 : plain_loss(net, batch);
    };
    const auto trainer = trainer_for(mode, loss, {.check = Check::kOff, .verify_interval = 0});
    for (int64_t n = 0; n < 15; ++n) trainer->step(batch_at(n));
    trainer->finish();
    states.push_back(trainer->state_dict());
    if (mode == "eager") continue;
    EXPECT_EQ(captured(dynamic_cast<GraphTrainer&>(*trainer).report()), 2);
  }
  expect_same_bits(states[0], states[1]);
}

TEST(HostReads, StrictCapturesWhatItCanAndRefusesTheRest) {
  const GraphOptions strict{.fallback = Fallback::kStrict};
  EXPECT_EQ(captured(run_values(repeated({1, 2}, 10), strict).report), 2);
  const auto trainer = trainer_for("graph", loss_of_value, strict);
  expect_error<GraphError>(
      [&] {
        for (int64_t n = 0; n < 20; ++n) trainer->step(batch_of(n, n));
      },
      {"changes from step to step", "graph.fallback to auto"});
}

TEST(HostReads, ABufferThatTheStepChangedBeforeKeepsTheOldReason) {
  const auto count = std::make_shared<Tensor>(torch::zeros({}));
  const auto trainer = trainer_for("graph", [count](TwoLayers& net, const Batch& batch) {
    const Tensor loss = plain_loss(net, batch);
    return count->add_(1).item<double>() > 3 ? loss * 2 : loss;
  });
  for (int64_t n = 0; n < 3; ++n) trainer->step(batch_at(n));
  const auto report = dynamic_cast<GraphTrainer&>(*trainer).report();
  ASSERT_EQ(report.size(), 1U);
  EXPECT_EQ(report[0].state, "eager");
  EXPECT_EQ(
      report[0].reason,
      "aten::_local_scalar_dense reads a value back to the host, after the last read of parameter 'b.weight'; keep "
      "it a tensor (item(), bool(tensor) and printing are what cause this)");
}

// A momentum encoder and a counter beside it.
TEST(HostReads, WhatTheStepHasChangedElsewhereIsNoObstacle) {
  const auto average = std::make_shared<Tensor>(torch::ones({16}));
  const auto run = run_values(repeated({3, 1}, 10), {}, [average](TwoLayers& net, const Batch& batch) {
    average->mul_(0.9).add_(batch["input"][0], 0.1);
    return loss_of_value(net, batch);
  });
  EXPECT_EQ(captured(run.report), 2);
  EXPECT_EQ(total(run.report, &SignatureReport::replays), 16);
}

TEST(HostReads, AStepWithOtherValuesRunsItsHostCodeOnce) {
  for (const Check check : {Check::kEvery, Check::kOff}) {
    int64_t calls = 0;
    const auto loss = [&calls](TwoLayers& net, const Batch& batch) {
      ++calls;
      return loss_of_value(net, batch);
    };
    const std::vector<int64_t> values = {1, 1, 1, 1, 2, 1, 2, 1, 2, 3, 1, 3, 2, 1, 3, 3};
    const auto trainer = trainer_for("graph", loss, {.check = check, .verify_interval = 0});
    for (std::size_t n = 0; n < values.size(); ++n) {
      trainer->step(batch_of(static_cast<int64_t>(n), values[n]));
      const bool replayed = check == Check::kOff && dynamic_cast<GraphTrainer&>(*trainer).replays() > 0;
      EXPECT_TRUE(replayed || calls == static_cast<int64_t>(n) + 1) << "step " << n;
    }
    const auto& graph = dynamic_cast<GraphTrainer&>(*trainer);
    const int64_t of_steps = check == Check::kEvery ? static_cast<int64_t>(values.size()) : graph.eager_steps();
    EXPECT_GT(graph.replays(), 4);
    EXPECT_EQ(calls, of_steps);
    trainer->finish();
    EXPECT_EQ(calls > of_steps, check == Check::kOff) << "what was not checked is checked at the end";
  }
}

TEST(HostReads, SeveralMicroBatchesReadTheirOwn) {
  TrainerOptions options;
  options.loop.accumulate = 2;
  std::vector<StateDict> states;
  for (const std::string mode : {"eager", "graph"}) {
    const auto trainer = trainer_for(mode, loss_of_value, {}, options);
    for (int64_t n = 0; n < 24; ++n) {
      trainer->step({batch_of(2 * n, 3), batch_of(2 * n + 1, n % 2)});
    }
    states.push_back(trainer->state_dict());
    if (mode == "eager") continue;
    const auto report = dynamic_cast<GraphTrainer&>(*trainer).report();
    EXPECT_EQ(captured(report), 2);
    EXPECT_THAT(report[0].signature, HasSubstr(", reads 3, 1"));
    EXPECT_EQ(total(report, &SignatureReport::replays), 20);
  }
  expect_same_bits(states[0], states[1]);
}

TEST(HostReads, PredictionsAreGuardedLikewise) {
  std::vector<std::vector<Tensor>> outputs;
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    const auto forward = [](TwoLayers& net, const Batch& batch) {
      const Tensor y = net.forward(batch["input"]);
      return batch["value"].item<int64_t>() > 1 ? y.softmax(1) : y;
    };
    const auto loss = [](const Tensor& y, const Batch& batch) {
      return torch::nn::functional::cross_entropy(y, batch["target"]);
    };
    const auto trainer = testing::make_trainer(mode, make_task(std::make_shared<TwoLayers>(), forward, loss));
    outputs.emplace_back();
    for (int64_t n = 0; n < 30; ++n) {
      outputs.back().push_back(trainer->predict(batch_of(n, n / 3 % 3))["prediction"]);
      if (n % 10 == 9) outputs.back().push_back(trainer->step(batch_of(n, n % 3)).loss);
    }
    trainer->finish();
    if (mode == "eager") continue;
    int64_t captures = 0;
    for (const auto& each : dynamic_cast<GraphTrainer&>(*trainer).report()) {
      captures += each.kind == "prediction" && each.state == "captured" ? 1 : 0;
    }
    EXPECT_EQ(captures, 3);
  }
  ASSERT_EQ(outputs[0].size(), outputs[1].size());
  for (std::size_t i = 0; i < outputs[0].size(); ++i) EXPECT_TRUE(same_bits(outputs[0][i], outputs[1][i])) << i;
}

// Reads a flag of its own in the code of the step.
struct Reader : Hook {
  std::string name() const override { return "reader"; }
  void in_step(StepView& view) override {
    const at::NoGradGuard no_grad;
    if (flag.item<double>() > 0) view.parameters[0].second.detach().mul_(0.5);
  }
  Tensor flag = torch::zeros({});
};

// Sets it at a split point before that.
struct Setter : Reader {
  void after_backward(TrainContext& run) override { flag.fill_(run.progress.step % 5 == 4 ? 1.0 : 0.0); }
};

// Hooks at a split point may change whatever a later read depends on.
TEST(HostReads, BehindASplitPointTheyAreObstacles) {
  for (const bool splits : {true, false}) {
    std::vector<StateDict> states;
    for (const std::string mode : {"eager", "graph"}) {
      const auto trainer = trainer_for(mode, plain_loss);
      splits ? trainer->add_hook(std::make_unique<Setter>()) : trainer->add_hook(std::make_unique<Reader>());
      for (int64_t n = 0; n < 20; ++n) trainer->step(batch_at(n));
      states.push_back(trainer->state_dict());
      if (mode == "eager") continue;
      const auto report = dynamic_cast<GraphTrainer&>(*trainer).report();
      EXPECT_EQ(report[0].state, splits ? "eager" : "captured");
      EXPECT_THAT(report[0].reason, HasSubstr(splits ? "reads a value back to the host, " : ""));
    }
    expect_same_bits(states[0], states[1]);
  }
}

TEST(HostReads, BeforeASplitPointTheyAreGuarded) {
  std::vector<StateDict> states;
  for (const std::string mode : {"eager", "graph"}) {
    const auto trainer = trainer_for(mode, loss_of_value);
    trainer->on(HookPoint::kAfterBackward, [](TrainContext& run) {
      Tensor gradient = run.task.named_parameters()[0].second.grad();
      gradient.mul_(gradient.abs().max().item<double>() > 0.1 ? 0.5 : 1.0);
    });
    for (int64_t n = 0; n < 20; ++n) trainer->step(batch_of(n, n % 2));
    states.push_back(trainer->state_dict());
    if (mode == "eager") continue;
    EXPECT_EQ(captured(dynamic_cast<GraphTrainer&>(*trainer).report()), 2);
  }
  expect_same_bits(states[0], states[1]);
}

TEST(HostReads, AreExplainedAsGuarded) {
  const auto trainer = trainer_for("graph", loss_of_value);
  const StepExplanation explanation = trainer->explain(batch_of(0, 7));
  EXPECT_TRUE(explanation.captured) << explanation.text();
  EXPECT_TRUE(explanation.obstacles.empty());
  EXPECT_EQ(explanation.reads, 1);
  EXPECT_THAT(explanation.text(), HasSubstr("reads 1 value back to the host, guarded"));
}

// A model of a decoder's kind: embedding, causal attention, a mask that is asked whether it masks anything.
TEST(HostReads, ADecoderThatAsksItsMaskIsCaptured) {
  struct Decoder : torch::nn::Module {
    torch::nn::Embedding embedding{32, 16};
    torch::nn::Linear head{16, 32};
    Decoder() {
      register_module("embedding", embedding);
      register_module("head", head);
    }
    Tensor loss(const Batch& batch) {
      const Tensor x = embedding(batch["tokens"]);
      std::optional<Tensor> mask;
      if (!batch["mask"].all().item<bool>()) mask = batch["mask"].unsqueeze(1).unsqueeze(1);
      const Tensor q = x.unsqueeze(1);
      const Tensor y = at::scaled_dot_product_attention(q, q, q, mask, 0.0, /*is_causal=*/!mask).squeeze(1);
      return torch::nn::functional::cross_entropy(head(y).flatten(0, 1), batch["tokens"].flatten());
    }
  };
  for (const bool pads : {false, true}) {
    std::vector<StateDict> states;
    for (const std::string mode : {"eager", "graph"}) {
      seed_all(3);
      const auto loss = [](Decoder& net, const Batch& batch) { return net.loss(batch); };
      const auto trainer = testing::make_trainer(mode, make_task(std::make_shared<Decoder>(), loss));
      for (int64_t n = 0; n < 24; ++n) {
        Tensor mask = torch::ones({4, 8}, at::kBool);
        if (pads && n % 3 == 0) mask[1][7] = false;
        trainer->step({{"tokens", (torch::arange(32).view({4, 8}) * 7 + n) % 32}, {"mask", mask}});
      }
      states.push_back(trainer->state_dict());
      if (mode == "eager") continue;
      const auto report = dynamic_cast<GraphTrainer&>(*trainer).report();
      EXPECT_EQ(captured(report), pads ? 2 : 1);
      EXPECT_GE(total(report, &SignatureReport::replays), 20);
    }
    expect_same_bits(states[0], states[1]);
  }
}

}  // namespace
}  // namespace duet
