#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/task.h"
#include "core/trainer.h"
#include "tests/support/modes.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

// find_lr() on several ranks: one curve, that of one process, and no trace.

namespace duet {
namespace {

using namespace testing;

class DistributedLrFinder : public InBothModes {};
DUET_IN_BOTH_MODES(DistributedLrFinder);

NamedTensors find(const Ranks& ranks, const std::string& mode) {
  seed_all(4);
  const auto data = share_of({{"x", torch::randn({22, 6})}, {"y", torch::arange(22) % 3}}, 4, ranks.get());
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.1};
  options.distributed.communicator = ranks;
  const auto loss = [](torch::nn::LinearImpl& model, const Batch& batch) {
    return torch::nn::functional::cross_entropy(model.forward(batch["x"]), batch["y"]);
  };
  auto task = make_task(std::make_shared<torch::nn::LinearImpl>(6, 3), loss);
  const auto trainer = testing::make_trainer(mode, std::move(task), options);
  NamedTensors before = weights_of(*trainer);
  for (auto& item : before) item.second = item.second.clone();
  const LrCurve curve = trainer->find_lr(*data, {.min_lr = 1e-4, .max_lr = 10, .num_training = 30});
  for (const auto& [name, tensor] : before) EXPECT_TRUE(same_bits(trainer->weights().tensor(name), tensor)) << name;
  return {{"lr", at::tensor(curve.lr, at::kDouble)},
          {"loss", at::tensor(curve.loss, at::kDouble)},
          {"steepest", at::scalar_tensor(curve.steepest.value(), at::kDouble)},
          {"valley", at::scalar_tensor(curve.valley.value(), at::kDouble)},
          {"failed", at::scalar_tensor(::testing::Test::HasFailure(), at::kDouble)}};
}

TEST_P(DistributedLrFinder, SuggestsOnAllRanksWhatOneProcessDoes) {
  const auto run = [&](int64_t world) {
    return run_ranks(world, [&](const Ranks& ranks) { return find(ranks, mode()); });
  };
  const auto one = run(1), two = run(2);
  expect_no_error(one);
  expect_same_on_all(two);
  if (HasFailure()) return;
  EXPECT_LE(largest_difference(one[0], two[0]), 1e-5);
  EXPECT_EQ(two[0].at("failed").item<double>() + two[1].at("failed").item<double>(), 0);
}

}  // namespace
}  // namespace duet
