#include <optional>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/task.h"
#include "graph/graph_trainer.h"
#include "make_trainer.h"
#include "tests/support/memory_limit.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

// With 24 MB of weights and momenta, and 12 MB of gradients.
std::unique_ptr<Task> large_task(int64_t& calls) {
  seed_all(0);
  return make_task(std::make_shared<torch::nn::LinearImpl>(1024, 3072),
                   [&calls](torch::nn::LinearImpl& linear, const Batch& batch) {
                     ++calls;
                     return linear.forward(batch["x"]).square().mean();
                   });
}

TEST(ParityGuard, ComparesOnlyWhereTheHostHasTheMemory) {
  if (!memory_can_be_limited()) GTEST_SKIP() << "a sanitizer takes all address space";
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.1, .momentum = 0.9};
  options.device = "cpu";
  int64_t eager_calls = 0, calls = 0;
  const auto eager = make_trainer(Mode::kEager, large_task(eager_calls), options);
  GraphTrainer graph(large_task(calls), options, {.check = Check::kOff, .verify_interval = 1});
  const Batch batch = {{"x", torch::randn({2, 1024})}};
  std::vector<at::Tensor> expected;
  for (int64_t n = 0; n < 20; ++n) expected.push_back(eager->step(batch).loss);
  auto next = expected.begin();
  const auto train = [&](int64_t steps) {
    for (int64_t n = 0; n < steps; ++n) EXPECT_TRUE(testing::same_bits(*next++, graph.step(batch).loss));
  };
  train(6);
  const int64_t before = calls;
  EXPECT_GE(before, 4) << "not compared";
  {
    const MemoryLimit limit(16 << 20);
    train(3);
  }
  EXPECT_EQ(calls, before);
  EXPECT_EQ(graph.report().front().state, "captured");
  train(11);
  EXPECT_GT(calls, before) << "never compared again";
  testing::expect_same_bits(eager->state_dict(), graph.state_dict());
}

// What only the host code of each step names cannot be replayed alone.
TEST(ParityGuard, RunsAStepOfOtherTensorsEagerWhereTheHostLacksTheMemory) {
  if (!memory_can_be_limited()) GTEST_SKIP() << "a sanitizer takes all address space";
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.1, .momentum = 0.9};
  options.device = "cpu";
  at::Tensor scale;
  const auto task = [&scale] {
    seed_all(0);
    return make_task(std::make_shared<torch::nn::LinearImpl>(1024, 3072),
                     [&scale](torch::nn::LinearImpl& linear, const Batch& batch) {
                       return (linear.forward(batch["x"]) * scale).square().mean();
                     });
  };
  const auto eager = make_trainer(Mode::kEager, task(), options);
  GraphTrainer graph(task(), options, {.verify_interval = 1});
  const Batch batch = {{"x", torch::randn({2, 1024})}};
  const auto step = [&](BaseTrainer& trainer, int64_t n) {
    scale = torch::full({}, 1 + 0.1 * static_cast<double>(n));
    return trainer.step(batch).loss.item<double>();
  };
  std::vector<double> expected;
  for (int64_t n = 0; n < 14; ++n) expected.push_back(step(*eager, n));
  for (int64_t n = 0; n < 14; ++n) {
    std::optional<MemoryLimit> limit;
    if (n >= 8 && n < 12) limit.emplace(30 << 20);
    EXPECT_EQ(step(graph, n), expected[static_cast<std::size_t>(n)]) << n;
  }
  testing::expect_same_bits(eager->state_dict(), graph.state_dict());
}

}  // namespace
}  // namespace duet
