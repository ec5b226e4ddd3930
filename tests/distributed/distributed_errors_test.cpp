#include <cmath>
#include <limits>
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "core/task.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

// Models, tasks and values that differ between the ranks of one training.
namespace duet {
namespace {

using namespace testing;

using Ranks = std::shared_ptr<Communicator>;

// loss = mean(x) * a + mean(x) * b: the gradients are the means of x.
struct TwoWeights : torch::nn::Module {
  at::Tensor a = register_parameter("a", torch::ones({1})), b = register_parameter("b", torch::ones({1}));
};

Batch batch_of(double value) { return {{"x", torch::full({1}, value, torch::kFloat)}}; }

struct Training {
  std::string mode = "eager";
  TrainerOptions options{};
  int64_t steps = 1;
  std::function<StepOutput(TwoWeights&, const at::Tensor& mean, int64_t step)> loss =
      [](TwoWeights& model, const at::Tensor& mean, int64_t) {
        return StepOutput{(mean * model.a + mean * model.b).sum(), {}};
      };
  std::function<double(int64_t step)> value = [](int64_t) { return 2.0; };
};

NamedTensors train(Training run, const Ranks& ranks) {
  int64_t step = 0;
  const auto task_step = [&](TwoWeights& model, const Batch& batch) {
    return run.loss(model, batch["x"].mean(), step);
  };
  run.options.optimizer = SGD{.lr = 0.1};
  run.options.distributed.communicator = ranks;
  const auto trainer = make_trainer(run.mode, make_task(std::make_shared<TwoWeights>(), task_step), run.options);
  for (; step < run.steps; ++step) trainer->step(batch_of(run.value(step)));
  trainer->finish();
  return weights_of(*trainer);
}

// Every rank ends with an error that tells of the cause, at least one with `exit_code` and the others too or with
// PeerError.
void expect_told(const std::vector<RankResult>& results, int exit_code, const std::string& text) {
  bool own = false;
  for (const RankResult& result : results) {
    own = own || result.exit_code == exit_code;
    EXPECT_TRUE(result.exit_code == exit_code || result.exit_code == 6) << result.exit_code << " " << result.error;
    EXPECT_NE(result.error.find(text), std::string::npos) << "'" << text << "' is not in: " << result.error;
    EXPECT_LT(result.seconds, kAtOnce) << "it was a timeout";
  }
  EXPECT_TRUE(own);
}

class DistributedErrors : public ::testing::TestWithParam<const char*> {};

TEST_P(DistributedErrors, OtherNamesAreLogged) {
  expect_told(run_ranks(3,
                        [&](const Ranks& ranks) {
                          Training run{.mode = GetParam()};
                          run.loss = [&](TwoWeights& model, const at::Tensor& mean, int64_t) {
                            const at::Tensor loss = (mean * model.a + mean * model.b).sum();
                            return StepOutput{loss, {{ranks->rank() == 1 ? "mistake" : "error", loss.detach()}}};
                          };
                          return train(run, ranks);
                        }),
              2, "training_step logs other values on rank 1");
}

TEST(DistributedErrorsLater, OtherNamesAreLoggedInALaterStep) {
  expect_told(run_ranks(2,
                        [](const Ranks& ranks) {
                          Training run{.steps = 6};
                          run.loss = [&](TwoWeights& model, const at::Tensor& mean, int64_t step) {
                            const at::Tensor loss = (mean * model.a + mean * model.b).sum();
                            return StepOutput{loss,
                                              {{ranks->rank() == 1 && step == 3 ? "mistake" : "error", loss.detach()}}};
                          };
                          return train(run, ranks);
                        }),
              2, "logs other names than in the first step");
}

Training with_b_on_rank_0_alone(const std::string& mode, const Ranks& ranks, int64_t from) {
  Training run{.mode = mode, .steps = 4};
  run.loss = [&ranks, from](TwoWeights& model, const at::Tensor& mean, int64_t step) {
    const bool uses_b = ranks->rank() == 0 || step < from;
    return StepOutput{(uses_b ? mean * model.a + mean * model.b : mean * model.a).sum(), {}};
  };
  run.value = [&ranks](int64_t) { return ranks->rank() == 0 ? 2.0 : 4.0; };
  return run;
}

TEST_P(DistributedErrors, AParameterIsUnusedOnOneRank) {
  expect_told(
      run_ranks(2, [&](const Ranks& ranks) { return train(with_b_on_rank_0_alone(GetParam(), ranks, 0), ranks); }), 2,
      "'b'");
}

TEST(DistributedErrorsLater, AParameterIsUnusedOnOneRankInALaterStep) {
  expect_told(run_ranks(2, [](const Ranks& ranks) { return train(with_b_on_rank_0_alone("eager", ranks, 2), ranks); }),
              2, "'b' got no gradient in this step on rank 1");
}

TEST_P(DistributedErrors, AnUnusedParameterCountsAsZeroOnRequest) {
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    Training run = with_b_on_rank_0_alone(GetParam(), ranks, 0);
    run.options.distributed.find_unused_parameters = true;
    return train(run, ranks);
  });
  expect_same_on_all(results);
  EXPECT_NEAR(results[0].at("a").item<float>(), 1 - 4 * 0.1 * 3, 1e-6);  // (2 + 4) / 2
  EXPECT_NEAR(results[0].at("b").item<float>(), 1 - 4 * 0.1 * 1, 1e-6);  // (2 + 0) / 2
}

TEST_P(DistributedErrors, AGradientIsSparse) {
  expect_told(run_ranks(2,
                        [&](const Ranks& ranks) {
                          TrainerOptions options;
                          options.optimizer = SGD{.lr = 0.1};
                          options.distributed.communicator = ranks;
                          const torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
                          const auto trainer = make_trainer(
                              GetParam(),
                              make_task(table, [](torch::nn::EmbeddingImpl& model,
                                                  const Batch& batch) { return model.forward(batch["x"]).sum(); }),
                              options);
                          trainer->step(Batch{{"x", torch::tensor({1, 2})}});
                          return NamedTensors();
                        }),
              2, "expected a dense one");
}

TEST(DistributedErrorsLater, TheModelsDiffer) {
  const auto with_model = [](const std::function<torch::nn::Linear(int64_t rank)>& make) {
    return run_ranks(3, [&](const Ranks& ranks) {
      TrainerOptions options;
      options.distributed.communicator = ranks;
      const auto loss = [](torch::nn::LinearImpl& model, const Batch& batch) {
        return model.forward(batch["x"]).sum();
      };
      const auto trainer = make_trainer("eager", make_task(make(ranks->rank()), loss), options);
      return NamedTensors{{"weight", trainer->weights().tensor("weight")}};
    });
  };
  const auto shapes = with_model([](int64_t rank) { return torch::nn::Linear(rank == 2 ? 5 : 4, 3); });
  for (const RankResult& result : shapes) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.error.find("rank 2 has another model than rank 0"), std::string::npos) << result.error;
    EXPECT_NE(result.error.find("[3, 5]"), std::string::npos) << result.error;
  }
  const auto frozen = with_model([](int64_t rank) {
    torch::nn::Linear layer(4, 3);
    if (rank == 1) layer->bias.requires_grad_(false);
    return layer;
  });
  for (const RankResult& result : frozen) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.error.find("bias"), std::string::npos) << result.error;
  }
  const auto missing =
      with_model([](int64_t rank) { return torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(rank != 1)); });
  for (const RankResult& result : missing) EXPECT_EQ(result.exit_code, 2) << result.error;
  const auto values = with_model([](int64_t rank) {
    torch::manual_seed(static_cast<uint64_t>(rank));
    return torch::nn::Linear(4, 3);
  });
  expect_same_on_all(values);
}

TEST_P(DistributedErrors, NaNOnOneRankEndsTheRunOnAll) {
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    Training run{.mode = GetParam(), .steps = 5};
    run.options.non_finite = NonFinite::kRaise;
    run.value = [&](int64_t step) {
      return step == 3 && ranks->rank() == 1 ? std::numeric_limits<double>::infinity() : 2.0;
    };
    return train(run, ranks);
  });
  for (const RankResult& result : results) EXPECT_EQ(result.exit_code, 5) << result.error;
}

INSTANTIATE_TEST_SUITE_P(Modes, DistributedErrors, ::testing::Values("eager", "graph"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace duet
