#include "graph/record/op_recorder.h"
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/detail/op_rules.h"
#include "base/error.h"

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

}  // namespace
}  // namespace duet
