#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "base/error.h"
#include "core/detail/train_step.h"
#include "graph/detail/graph_executor.h"
#include "tests/graph/cuda/captured_steps.h"
#include "tests/support/fake_capture.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/over_tensors.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

// Steps captured as device graphs, driven by a device that captures on the CPU.

namespace duet {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using testing::expect_eager_bits;
using testing::FakeLog;
using ::testing::HasSubstr;
using testing::mapped_loss;
using testing::Outcome;
using testing::run;
using testing::same_bits;
using testing::Setting;
using testing::Steps;
using testing::ToyTask;

TEST(CudaReplay, GivesTheBitsOfEager) {
  for (const ToyTask& task : testing::all_toy_tasks()) {
    for (const auto& [optimizer, accumulate] : {std::pair<std::string, int64_t>("AdamW", 3), {"SGD", 1}}) {
      SCOPED_TRACE(task.name + " " + optimizer);
      const Outcome graph = expect_eager_bits({task, testing::of_type(optimizer), accumulate});
      EXPECT_EQ(graph.report.back().state, "captured") << graph.report.back().reason;
      EXPECT_GT(graph.report.back().bytes, 0);
    }
  }
}

TEST(CudaReplay, SchedulesOfAllNumbersTakeOneCapture) {
  for (const OptimizerOptions& optimizer :
       {OptimizerOptions(SGD{.momentum = 0.9, .dampening = 0.2}),
        OptimizerOptions(SGD{.momentum = 0.9, .nesterov = true}), OptimizerOptions(Adam{.amsgrad = true}),
        OptimizerOptions(AdamW{}), OptimizerOptions(Adagrad{})}) {
    Setting setting{.optimizer = testing::over_tensors(optimizer)};
    setting.schedule = [](HyperParameters& numbers) {
      for (const char* name : {"lr", "weight_decay", "momentum", "dampening", "beta1", "beta2"}) {
        if (!numbers.has(0, name) || (name == std::string("dampening") && numbers.get(0, name) == 0)) continue;
        numbers.set_schedule(name, [](std::size_t, int64_t applied) { return 0.5 / static_cast<double>(applied + 1); });
      }
    };
    SCOPED_TRACE(optimizer.type());
    const Outcome graph = expect_eager_bits(setting);
    ASSERT_EQ(graph.report.size(), 1U);
    EXPECT_EQ(graph.report[0].state, "captured") << graph.report[0].reason;
    EXPECT_EQ(graph.report[0].replays, 11);
    EXPECT_EQ(graph.log->count("begin"), 1);
  }
}

// The other rank has the same gradients, so that every sum is twice this rank's part.
TEST(CudaReplay, CapturesTheCollectivesOfSeveralRanks) {
  // Those of images and of a recurrent net have gradients like the first one's.
  for (const ToyTask& task : {testing::mlp_task(), testing::attention_task(), testing::partial_task()}) {
    for (const int64_t accumulate : {1, 3}) {
      SCOPED_TRACE(task.name + " " + std::to_string(accumulate));
      const auto ranks = std::make_shared<testing::FakeCommunicator>(0, 2, [](const Tensor& sum) { sum.mul_(2); });
      Setting setting{.task = task, .accumulate = accumulate, .ranks = ranks};
      run(setting, false);
      const int eager_calls = ranks->calls;
      const Outcome graph = expect_eager_bits(setting);
      EXPECT_EQ(graph.report.back().state, "captured") << graph.report.back().reason;
      EXPECT_GE(graph.report.back().replays, 10);
      // As many as eager mode, and one step's more for each capture, which this stand-in for a device runs.
      const int per_step = eager_calls / static_cast<int>(setting.steps);
      EXPECT_EQ(ranks->calls, 3 * eager_calls + per_step * graph.log->count("begin"));
    }
  }
}

TEST(CudaReplay, ThreeEagerStepsOneWatchedThenOneCaptureAndReplays) {
  const Outcome graph = expect_eager_bits({});
  ASSERT_EQ(graph.report.size(), 1U);
  EXPECT_EQ(graph.report[0].eager_steps, 4);
  EXPECT_EQ(graph.report[0].replays, 11);
  std::vector<std::string> expected = {"begin", "end"};
  expected.insert(expected.end(), 11, "replay 0");
  expected.insert(expected.end(), {"destroy backend", "destroy device"});
  EXPECT_EQ(graph.log->calls, expected);
}

TEST(CudaReplay, SplitPointsCutItIntoGraphs) {
  Setting setting;
  setting.splits = true;
  for (const int64_t accumulate : {1, 2}) {
    setting.accumulate = accumulate;
    const Outcome graph = expect_eager_bits(setting);
    EXPECT_EQ(graph.backwards, 15);
    EXPECT_EQ(graph.optimizers, 15);
    ASSERT_EQ(graph.report.size(), 1U);
    EXPECT_EQ(graph.report[0].state, "captured") << graph.report[0].reason;  // although the hooks read values back
    EXPECT_EQ(graph.log->count("begin"), 3);
    EXPECT_EQ(graph.log->count("end"), 3);
    EXPECT_GE(graph.log->count("replay 2"), 11);
    EXPECT_EQ(graph.log->count("replay 0"), graph.log->count("replay 2"));
    EXPECT_EQ(graph.log->count("replay 1"), graph.log->count("replay 2"));
  }
}

TEST(CudaReplay, ADeviceThatRefusesRunsEager) {
  for (const auto& [call, succeed] : std::vector<std::pair<std::string, int>>{
           {"begin", 0}, {"end", 0}, {"begin", 2}, {"end", 1}, {"aten::gelu", 0}}) {
    SCOPED_TRACE(call + " " + std::to_string(succeed));
    const Outcome graph = expect_eager_bits({.splits = succeed > 0, .fail_at = call, .fail_countdown = succeed});
    ASSERT_EQ(graph.report.size(), 1U);
    EXPECT_EQ(graph.report[0].state, "eager");
    EXPECT_THAT(graph.report[0].reason, HasSubstr("the device refused the capture"));
    EXPECT_EQ(graph.report[0].eager_steps, 15);
    EXPECT_EQ(graph.log->count("abort"), 1);
    EXPECT_EQ(graph.log->count("replay 0"), 0);
  }
  Steps strict({.fail_at = "begin", .graph = {.fallback = Fallback::kStrict}}, /*by_device=*/true);
  for (int64_t n = 0; n < 4; ++n) strict.step();
  const Tensor weight = strict.train_step().parameters().front().second, before = weight.detach().clone();
  EXPECT_THROW(strict.step(), GraphError);
  EXPECT_TRUE(same_bits(before, weight));
  strict.step();
  EXPECT_EQ(strict.report().state, "captured");  // it does not run eager from then on
}

TEST(CudaReplay, TheStepThatIsCapturedRunsItsHostCodeOnce) {
  for (const bool splits : {false, true}) {
    int64_t calls = 0;
    Setting setting;
    setting.task = mapped_loss(calls, [](const Tensor& loss, int64_t) { return loss; });
    setting.splits = splits;
    setting.graph = {.check = Check::kEvery, .verify_interval = 0};
    const Outcome graph = run(setting, true);
    EXPECT_EQ(graph.report.back().state, "captured") << graph.report.back().reason;
    EXPECT_EQ(calls, setting.steps);
  }
}

// The step that is recorded, the one that is captured and the first one that is checked take turns.
TEST(CudaReplay, ACaptureOfOtherHostCodeThanTheRecordedIsNotKept) {
  for (const int64_t period : {2, 3, 5}) {
    int64_t calls = 0;
    Setting setting;
    setting.task = mapped_loss(
        calls, [period](const Tensor& loss, int64_t call) { return loss * (call % period == 0 ? 2.0 : 1.0); });
    setting.steps = 40;
    setting.graph = {.verify_interval = 0};
    const Outcome graph = expect_eager_bits(setting);
    EXPECT_EQ(calls, setting.steps) << period;
    EXPECT_THAT(graph.report.back().reason, HasSubstr("aten::mul")) << period;
  }
}

TEST(CudaReplay, GraphsGoBeforeTheirDevice) {
  Setting setting;
  setting.task.batch = [](int64_t, uint64_t seed) { return testing::mlp_task().batch(seed % 20 == 0 ? 8 : 5, seed); };
  std::shared_ptr<FakeLog> log;
  {
    Steps steps(setting, /*by_device=*/true);
    log = steps.log;
    for (int64_t n = 0; n < 16; ++n) steps.step();  // two signatures
    EXPECT_EQ(log->count("begin"), 2);
    EXPECT_EQ(log->count("destroy backend"), 0);
  }
  ASSERT_GE(log->calls.size(), 3U);
  EXPECT_THAT(std::vector<std::string>(log->calls.end() - 3, log->calls.end()),
              ElementsAre("destroy backend", "destroy backend", "destroy device"));
}

// The eager run of a comparison needs memory for activations, which a replay has already.
TEST(CudaReplay, AComparisonThatIsShortOfMemoryIsPutOff) {
  bool is_short = false;
  const auto hungry = [&is_short](const Tensor& loss) {
    TORCH_CHECK_WITH(OutOfMemoryError, !is_short, "no memory");
    return loss;
  };
  const Setting setting{.task = testing::mlp_with_loss([hungry] { return hungry; })};
  const Outcome eager = run(setting, false);
  Steps steps(setting, /*by_device=*/true);
  const auto& parameters = steps.train_step().parameters();
  int comparisons = 0;
  for (int64_t n = 0; n < setting.steps; ++n) {
    is_short = steps.next_path() == StepPath::kReplayAndCompare;
    comparisons += is_short ? 1 : 0;
    const StepResult output = steps.run();
    is_short = false;
    EXPECT_EQ(output.loss.item<double>(), eager.losses[2 * n]) << n;
    EXPECT_TRUE(parameters.front().second.grad().defined());
  }
  EXPECT_GE(comparisons, 2);
  EXPECT_EQ(steps.report().state, "captured") << steps.report().reason;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(same_bits(eager.state[i].second, parameters[i].second)) << eager.state[i].first;
  }
  EXPECT_TRUE(same_bits(eager.state.back().second, random_state().tensor("cpu")));
}

}  // namespace
}  // namespace duet
