#include <cmath>
#include <utility>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/task.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using namespace testing;

struct TrainingRun {
  std::string mode = "eager";
  int64_t samples = 106;  // 13 global batches of 8 and a tail of 2
  int64_t global_batch = 8;
  int64_t accumulate = 1;
  int64_t steps = 100;
  int64_t broken_sample = -1;  // whose values are not numbers
  TrainerOptions options{};
};

NamedTensors train(const ToyTask& task, TrainingRun run, const std::shared_ptr<Communicator>& ranks) {
  seed_all(1);
  run.options.loop.max_steps = run.steps;
  run.options.loop.accumulate = run.accumulate;
  run.options.distributed.communicator = ranks;
  const auto trainer = make_trainer(run.mode, task.make(), run.options);
  NamedTensors samples = task.batch(run.samples, 7).items();
  if (run.broken_sample >= 0) samples.front().second[run.broken_sample].fill_(std::nan(""));
  trainer->train(*share_of(std::move(samples), run.global_batch, ranks.get()));
  NamedTensors result = weights_of(*trainer);
  result.emplace_back("the loss", trainer->result().loss);
  return result;
}

void expect_weights_of_one_process(int64_t ranks_count, const TrainingRun& run, double tolerance) {
  const ToyTask task = partial_task();
  const auto body = [&](const std::shared_ptr<Communicator>& ranks) { return train(task, run, ranks); };
  const auto many = run_ranks(ranks_count, body);
  expect_same_on_all(many);
  const auto one = run_ranks(1, body);
  expect_no_error(one);
  for (const auto& [name, tensor] : one.front().tensors) {
    EXPECT_TRUE(name == "the loss" || tensor.isfinite().all().item<bool>()) << name;
  }
  EXPECT_LE(largest_difference(one.front(), many.front()), tolerance) << run.mode;
}

class DistributedParity : public ::testing::TestWithParam<int64_t> {
 protected:
  static int64_t accumulate() { return GetParam() == 2 ? 3 : 1; }
};

TEST_P(DistributedParity, WeightsAreThoseOfOneProcessWithTheGlobalBatch) {
  for (const std::string mode : {"eager", "graph"}) {
    TrainingRun run{.mode = mode};
    run.options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
    expect_weights_of_one_process(GetParam(), run, 1e-6);
  }
}

// One rank has the sample, all leave out its step.
TEST_P(DistributedParity, StepsThatAreNotFiniteAreThoseOfOneProcess) {
  for (const std::string mode : {"eager", "graph"}) {
    TrainingRun run{.mode = mode, .accumulate = accumulate(), .broken_sample = 41};
    run.options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
    run.options.non_finite = NonFinite::kSkip;
    expect_weights_of_one_process(GetParam(), run, 1e-6);
  }
}

TEST_P(DistributedParity, ModesGiveTheSameBits) {
  for (const ToyTask& task : all_toy_tasks()) {
    TrainingRun run{.accumulate = accumulate(), .steps = 30};
    run.options.optimizer = AdamW{.lr = 1e-2};
    run.options.clip_grad = ClipNorm{.max_norm = 0.5};
    const auto eager = run_ranks(GetParam(), [&](const auto& ranks) { return train(task, run, ranks); });
    run.mode = "graph";
    const auto graph = run_ranks(GetParam(), [&](const auto& ranks) { return train(task, run, ranks); });
    expect_same_on_all(eager);
    expect_same_on_all(graph);
    if (HasFailure()) FAIL() << task.name;
    for (const auto& [name, tensor] : eager.front().tensors) {
      EXPECT_TRUE(same_bits(tensor, graph.front().at(name))) << task.name << ": " << name;
    }
  }
}

// A line search sums the gradients of every trial.
TEST_P(DistributedParity, AnStepThatRunsSeveralTimesIsThatOfOneProcess) {
  TrainingRun run{.samples = 32, .global_batch = 32, .steps = 3};
  run.options.optimizer = LBFGS{.max_iter = 5, .line_search_fn = "strong_wolfe"};
  expect_weights_of_one_process(GetParam(), run, 1e-4);
}

struct Counter : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", torch::ones({1}));
  at::Tensor count = register_buffer("count", torch::zeros({1}));
};

class DistributedBuffers : public ::testing::TestWithParam<const char*> {};

// Rank r adds r + 1 in each of five steps.
TEST_P(DistributedBuffers, AreThoseOfRankZeroAlsoWhereCodeReplacesThem) {
  const auto results = run_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
    const auto model = std::make_shared<Counter>();
    const auto rank = static_cast<double>(ranks->rank());
    const auto loss = [rank](Counter& counter, const Batch& batch) {
      counter.count.add_(rank + 1);
      return (batch["x"] * counter.weight).mean();
    };
    TrainerOptions options;
    options.optimizer = SGD{.lr = 0.1};
    options.distributed.communicator = ranks;
    const auto trainer = make_trainer(GetParam(), make_task(model, loss), options);
    for (int step = 0; step < 5; ++step) {
      trainer->step(Batch{{"x", torch::ones({2})}});
      if (step == 1) model->count.set_data(torch::full({1}, 10 + rank));
      if (step == 2) model->register_buffer("late", torch::full({2}, 20 + rank));
    }
    trainer->finish();
    return weights_of(*trainer);
  });
  expect_same_on_all(results);
  EXPECT_EQ(results[1].at("count").item<float>(), 13);
  EXPECT_EQ(results[1].at("late").sum().item<float>(), 40);
}

INSTANTIATE_TEST_SUITE_P(Modes, DistributedBuffers, ::testing::Values("eager", "graph"),
                         [](const auto& mode) { return std::string(mode.param); });
INSTANTIATE_TEST_SUITE_P(Worlds, DistributedParity, ::testing::Values(2, 4));

}  // namespace
}  // namespace duet
