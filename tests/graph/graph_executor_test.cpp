#include <algorithm>
#include <atomic>
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/graph/both_modes.h"
#include "tests/support/expect_error.h"

// When a step is captured, how long it stays so, and what a step that fails leaves.

namespace duet {
namespace {

using testing::batch_at;
using testing::expect_same_bits;
using testing::graph_trainer;
using ::testing::HasSubstr;
using testing::plain_loss;
using testing::TwoLayers;

TEST(GraphExecutor, StrictThrowsBeforeTheStepChangesAnything) {
  const auto loss = [](TwoLayers& net, const Batch& batch) {
    const at::Tensor value = plain_loss(net, batch);
    return value * value.item<double>();
  };
  const auto graph = graph_trainer(loss, {.fallback = Fallback::kStrict});
  graph->step(batch_at(0));
  const at::Tensor before = graph->task().named_parameters()[0].second.clone();
  EXPECT_THROW(graph->step(batch_at(1)), GraphError);
  EXPECT_TRUE(testing::same_bits(before, graph->task().named_parameters()[0].second));
}

TEST(GraphExecutor, FallbackEagerCapturesNothing) {
  const auto graph = graph_trainer(plain_loss, {.fallback = Fallback::kEager});
  for (int64_t n = 0; n < 5; ++n) graph->step(batch_at(n));
  EXPECT_EQ(graph->replays(), 0);
  EXPECT_EQ(graph->eager_steps(), 5);
}

TEST(GraphExecutor, TheByteBudgetDropsTheLeastRecentlyUsed) {
  const auto graph = graph_trainer(plain_loss, {.cache_bytes = 1});
  for (const int64_t size : {8, 8, 8, 4, 4, 4}) graph->step(batch_at(0, size));
  const auto report = graph->report();
  ASSERT_EQ(report.size(), 2U);
  EXPECT_EQ(report[0].state, "seen");
  EXPECT_EQ(report[1].state, "captured");
}

// Recordings that are hardly replayed cost more than they save.
TEST(GraphExecutor, ManySignaturesAreRecordedOnceTheyHaveComeOften) {
  const auto graph = graph_trainer(plain_loss);
  for (const int64_t expected : {0, 8, 8, 8, 20}) {
    for (int64_t size = 2; size < 22; ++size) graph->step(batch_at(0, size));
    EXPECT_EQ(std::ranges::count(graph->report(), "captured", &SignatureReport::state), expected);
  }
}

TEST(GraphExecutor, ALoadLetsGoOfStepsThatItOutdates) {
  const auto graph = graph_trainer(plain_loss);
  for (int64_t n = 0; n < 3; ++n) graph->step(batch_at(n));
  EXPECT_EQ(graph->report()[0].state, "captured");
  graph->task().named_parameters()[0].second.set_requires_grad(false);
  graph->load_state_dict(graph->state_dict());
  EXPECT_EQ(graph->report()[0].state, "seen");
  EXPECT_EQ(graph->report()[0].bytes, 0);
}

TEST(GraphExecutor, TheProgramCanBePrinted) {
  const auto graph = graph_trainer(plain_loss);
  for (int64_t n = 0; n < 3; ++n) graph->step(batch_at(n));
  for (const char* part : {"%loss: Float[]", "%a.weight", "fused_adamw_"}) {
    EXPECT_THAT(graph->program_text(), HasSubstr(part));
  }
}

TEST(GraphExecutor, LoggedValuesAreThoseOfTheStep) {
  std::vector<at::Tensor> logs[2];
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    const auto loss = [](TwoLayers& net, const Batch& batch) {
      const at::Tensor value = plain_loss(net, batch);
      return StepOutput{value,
                        {{"constant", torch::tensor(2.5F)},
                         {"input", batch["input"][0][0]},
                         {"weight", net.a->weight[1][2]},
                         {"twice", value.detach() * 2},
                         {"itself", value}}};
    };
    const auto trainer = testing::make_trainer(mode, make_task(std::make_shared<TwoLayers>(), loss));
    for (int64_t n = 0; n < 12; ++n) {
      for (const auto& item : trainer->step(batch_at(n)).log) logs[mode == "graph"].push_back(item.second.clone());
    }
  }
  ASSERT_EQ(logs[0].size(), logs[1].size());
  for (std::size_t i = 0; i < logs[0].size(); ++i) EXPECT_TRUE(testing::same_bits(logs[0][i], logs[1][i])) << i;
}

// Its draws are none of the step's, which has no random ops.
TEST(GraphExecutor, AThreadThatDrawsMeanwhileEndsNoRun) {
  const auto graph = graph_trainer(plain_loss, {.verify_interval = 1});
  const auto alone = graph_trainer(plain_loss, {.fallback = Fallback::kEager});
  std::atomic<bool> stop = false;
  std::atomic<int64_t> draws = 0;
  std::thread other([&] {
    for (; !stop; ++draws) torch::rand({3});
  });
  constexpr int64_t kSteps = 40;
  for (int64_t n = 0; n < kSteps; ++n) {
    const int64_t before = draws;
    EXPECT_NO_THROW(graph->step(batch_at(n)));
    while (draws == before) std::this_thread::yield();
  }
  stop = true;
  other.join();
  for (int64_t n = 0; n < kSteps; ++n) alone->step(batch_at(n));
  expect_same_bits(alone->weights(), graph->weights());
}

TEST(GraphExecutor, AnotherThreadMayReplayWhatThisOneRecorded) {
  const auto graph = graph_trainer(plain_loss), alone = graph_trainer(plain_loss, {.fallback = Fallback::kEager});
  for (int64_t n = 0; n < 12; ++n) {
    std::thread([&] { graph->step(batch_at(n)); }).join();
    alone->step(batch_at(n));
  }
  EXPECT_EQ(graph->replays(), 10);
  expect_same_bits(alone->state_dict(), graph->state_dict());
}

class StepErrors : public ::testing::TestWithParam<const char*> {};

TEST_P(StepErrors, AnIndexOutOfRangeIsToldThoughNobodyReadsTheResult) {
  const auto loss = [](TwoLayers& net, const Batch& batch) {
    batch["input"].gather(1, batch["label"].unsqueeze(1));
    return plain_loss(net, batch);
  };
  const auto trainer = testing::make_trainer(GetParam(), make_task(std::make_shared<TwoLayers>(), loss));
  const auto step = [&trainer](int64_t n, int64_t label) {
    Batch batch = batch_at(n);
    batch.set("label", torch::full({8}, label, torch::kLong));
    trainer->step(batch);
  };
  for (int64_t n = 0; n < 5; ++n) step(n, n);
  expect_error<DataError>([&] { step(5, 99); }, {"train step 5: gather failed", "index 99 is out of bounds"});
}

TEST_P(StepErrors, ABatchThatRequiresAGradientIsRefused) {
  const auto trainer = testing::make_trainer(GetParam(), testing::mlp_task().make());
  Batch batch = batch_at(0);
  batch.set("input", batch["input"].clone().requires_grad_(true));
  EXPECT_THROW(trainer->step(batch), DataError);
}

INSTANTIATE_TEST_SUITE_P(InBothModes, StepErrors, ::testing::Values("eager", "graph"));

}  // namespace
}  // namespace duet
