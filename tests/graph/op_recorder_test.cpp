#include "graph/record/op_recorder.h"
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/detail/op_rules.h"
#include "base/error.h"
#include "graph/replay/cpu_program.h"

// What a recording sees.

namespace duet {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

// A tensor of the model's own that is laid over other memory is not moved at a replay.
TEST(OpRecorder, RefusesToMoveATensorFromOutside) {
  const Tensor outside = torch::empty({0});
  OpRecorder recorder({});
  recorder.record([&] { outside.set_(torch::ones({3}).storage()); });
  recorder.pause();
  EXPECT_THAT(recorder.failure(), HasSubstr("set_"));
}

TEST(OpRecorder, KnowsThatCudnnsRnnsChangeTheStateOfTheirDropout) {
  const auto rnn = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_cudnn_rnn", "");
  const std::vector<std::size_t> written = hidden_writes(rnn);
  ASSERT_EQ(written.size(), 1U);
  EXPECT_EQ(rnn.schema().arguments()[written[0]].name(), "dropout_state");
}

TEST(OpRecorder, WritesDownLeafCallsOfItsThreadAlone) {
  const Tensor w = torch::randn({4, 4}).requires_grad_(true);
  const OpRecorder recorder({{"w", w}});
  std::thread([] { torch::rand({3}).mul(2); }).join();
  EXPECT_TRUE(recorder.program().ops.empty());
  torch::linear(torch::ones({2, 4}), w).sum().backward();
  std::vector<std::string> names;
  for (const StepProgram::Op& op : recorder.program().ops) names.push_back(op.handle.schema().name());
  EXPECT_THAT(names, ::testing::Contains("aten::mm"));
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("aten::linear")));
  EXPECT_TRUE(recorder.failure().empty());
  EXPECT_THROW(OpRecorder({}, false), GraphError);
}

TEST(CpuProgram, RunsItsSegmentsOverTheSameInputs) {
  const Tensor x = torch::arange(6, at::kFloat);
  const Tensor y = torch::zeros({6});
  Tensor result, between;
  std::unique_ptr<CpuProgram> program;
  {
    OpRecorder recorder({});
    between = x * 2;
    recorder.add_split(SplitPoint::kAfterBackward);
    y.add_(between + 1);
    result = y.sum();
    (x * 3).exp();  // nobody reads it
    recorder.pause();
    program = std::make_unique<CpuProgram>(
        compile_program(std::make_shared<const StepProgram>(recorder.program()), {result, between}, bitexact_passes()));
  }
  ASSERT_EQ(program->segments(), 2U);
  EXPECT_EQ(program->op_count(), 4U);
  x.fill_(2);
  y.zero_();
  program->run(0);
  EXPECT_TRUE(program->tensor(between).equal(torch::full({6}, 4.0F)));
  EXPECT_TRUE(y.equal(torch::zeros({6})));
  program->tensor(between).fill_(9);
  program->run(1);
  EXPECT_EQ(program->tensor(result).item<float>(), 60);
  EXPECT_GT(program->bytes(), 0);
  EXPECT_THAT(program->text({{"x", x}}), HasSubstr("%x"));
}

}  // namespace
}  // namespace duet
