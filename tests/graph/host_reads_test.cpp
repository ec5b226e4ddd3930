#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "core/hook.h"
#include "tests/graph/both_modes.h"
#include "tests/support/expect_error.h"

// Steps whose host code reads values back: what is captured of them, how often, and what is said.

namespace duet {
namespace {

using at::Tensor;
using testing::batch_at;
using testing::expect_same_in_both_modes;
using testing::graph_trainer;
using ::testing::HasSubstr;
using testing::plain_loss;
using testing::RunOutcome;
using testing::StepRun;
using testing::TwoLayers;

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

using Values = std::vector<int64_t>;

testing::MakeRun with_values(const Values& values) {
  return [values](StepRun& run) {
    run.loss = loss_of_value;
    run.batch = [values](int64_t n) { return batch_of(n, values[static_cast<std::size_t>(n) % values.size()]); };
  };
}

// One step per value, in both modes; what graph mode made of it.
RunOutcome run_values(const Values& values, const GraphOptions& graph = {}) {
  const auto set_up = [&](StepRun& run) {
    with_values(values)(run);
    run.graph = graph;
  };
  return expect_same_in_both_modes(set_up, static_cast<int64_t>(values.size()));
}

Values repeated(const Values& values, int64_t times) {
  Values all;
  for (int64_t n = 0; n < times; ++n) all.insert(all.end(), values.begin(), values.end());
  return all;
}

TEST(HostReads, ValuesThatTakeTurnsAreCapturedEach) {
  const RunOutcome outcome = run_values(repeated({1, 2}, 15));
  ASSERT_EQ(outcome.report.size(), 2U);
  EXPECT_EQ(outcome.captured(), 2);
  EXPECT_THAT(outcome.report[0].signature, HasSubstr(", reads 2"));  // the second step was recorded
  EXPECT_THAT(outcome.report[1].signature, HasSubstr(", reads 1"));
  EXPECT_EQ(outcome.total(&SignatureReport::eager_steps), 4);
  EXPECT_EQ(outcome.total(&SignatureReport::replays), 26);
  EXPECT_EQ(outcome.total(&SignatureReport::differing), 0);
  EXPECT_EQ(outcome.reasons(), "");
}

TEST(HostReads, ValuesThatChangeAtEveryStepRunEagerSoonAndForGood) {
  Values values;
  for (int64_t n = 0; n < 60; ++n) values.push_back(n);
  const auto report = run_values(values).report;
  ASSERT_EQ(report.size(), 1U);
  EXPECT_EQ(report[0].state, "eager");
  EXPECT_EQ(report[0].bytes, 0);
  EXPECT_EQ(report[0].eager_steps, 60);
  for (const char* part : {"aten::_local_scalar_dense, before the first parameter is read, reads",
                           "changes from step to step", "Task::graph_key"}) {
    EXPECT_THAT(report[0].reason, HasSubstr(part));
  }
  EXPECT_THAT(report[0].signature, Not(HasSubstr("reads")));
}

TEST(HostReads, AValueThatComesBackStaysCapturedBesideOthersThatDoNot) {
  Values values;
  for (int64_t n = 0; n < 120; ++n) values.push_back(n % 4 == 3 ? n : 0);
  const RunOutcome outcome = run_values(values);
  ASSERT_EQ(outcome.report.size(), 2U);
  EXPECT_EQ(outcome.captured(), 1);
  const bool first = outcome.report[0].state == "captured";
  const SignatureReport& same = outcome.report[first ? 0 : 1];
  const SignatureReport& others = outcome.report[first ? 1 : 0];
  EXPECT_THAT(same.signature, HasSubstr(", reads 0"));
  EXPECT_THAT(others.signature, HasSubstr(", reads other values"));
  EXPECT_THAT(others.reason, HasSubstr("changes from step to step"));
  EXPECT_GT(same.replays, 80);
  EXPECT_EQ(outcome.total(&SignatureReport::eager_steps) + outcome.total(&SignatureReport::replays), 120);
}

TEST(HostReads, ValuesThatChangeSeldomAreCapturedOneAfterTheOther) {
  Values values;
  for (int64_t n = 0; n < 10 * 50; ++n) values.push_back(n / 50);  // 32 replays pay for a recording
  const RunOutcome outcome = run_values(values, {.verify_interval = 0});
  EXPECT_LE(outcome.report.size(), 8U);
  EXPECT_EQ(outcome.captured(), static_cast<int64_t>(outcome.report.size()));
  EXPECT_EQ(outcome.total(&SignatureReport::eager_steps), 20);
}

TEST(HostReads, WeightsThatMoveDropEveryVariant) {
  const auto set_up = [](StepRun& run) {
    with_values({0, 1})(run);
    run.between = [net = run.net](BaseTrainer&, int64_t n) {
      if (n == 15) net->a->weight.set_data(torch::full({8, 16}, 0.1));
    };
  };
  const RunOutcome outcome = expect_same_in_both_modes(set_up, 30);
  EXPECT_EQ(outcome.captured(), 2);
  EXPECT_EQ(outcome.total(&SignatureReport::eager_steps), 8);
}

TEST(HostReads, AStepWithOtherValuesRunsItsHostCodeOnce) {
  for (const Check check : {Check::kEvery, Check::kOff}) {
    int64_t calls = 0;
    const auto loss = [&calls](TwoLayers& net, const Batch& batch) {
      ++calls;
      return loss_of_value(net, batch);
    };
    const Values values = {1, 1, 1, 1, 2, 1, 2, 1, 2, 3, 1, 3, 2, 1, 3, 3};
    const auto graph = graph_trainer(loss, {.check = check, .verify_interval = 0});
    for (std::size_t n = 0; n < values.size(); ++n) {
      graph->step(batch_of(static_cast<int64_t>(n), values[n]));
      const bool replayed = check == Check::kOff && graph->replays() > 0;
      EXPECT_TRUE(replayed || calls == static_cast<int64_t>(n) + 1) << "step " << n;
    }
    const int64_t of_steps = check == Check::kEvery ? static_cast<int64_t>(values.size()) : graph->eager_steps();
    EXPECT_GT(graph->replays(), 4);
    EXPECT_EQ(calls, of_steps);
    graph->finish();
    EXPECT_EQ(calls > of_steps, check == Check::kOff) << "what was not checked is checked at the end";
  }
}

TEST(HostReads, SeveralMicroBatchesReadTheirOwn) {
  const auto set_up = [](StepRun& run) {
    with_values({3, 0, 3, 1})(run);
    run.options.loop.accumulate = 2;
  };
  const RunOutcome outcome = expect_same_in_both_modes(set_up, 24);
  EXPECT_EQ(outcome.captured(), 2);
  EXPECT_THAT(outcome.report[0].signature, HasSubstr(", reads 3, 1"));
  EXPECT_EQ(outcome.total(&SignatureReport::replays), 20);
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
    const auto set_up = [splits](StepRun& run) {
      run.between = [splits](BaseTrainer& trainer, int64_t n) {
        if (n > 0) return;
        splits ? trainer.add_hook(std::make_unique<Setter>()) : trainer.add_hook(std::make_unique<Reader>());
      };
    };
    const auto report = expect_same_in_both_modes(set_up).report;
    EXPECT_EQ(report[0].state, splits ? "eager" : "captured");
    EXPECT_THAT(report[0].reason, HasSubstr(splits ? "reads a value back to the host, " : ""));
  }
}

TEST(HostReads, AreExplainedAsGuarded) {
  const auto trainer = graph_trainer(loss_of_value);
  const StepExplanation explanation = trainer->explain(batch_of(0, 7));
  EXPECT_TRUE(explanation.captured) << explanation.text();
  EXPECT_TRUE(explanation.obstacles.empty());
  EXPECT_EQ(explanation.reads, 1);
  EXPECT_THAT(explanation.text(), HasSubstr("reads 1 value back to the host, guarded"));
}

}  // namespace
}  // namespace duet
