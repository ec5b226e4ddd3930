#include <csignal>
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "core/hook.h"
#include "core/task.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

// What one rank does and the others do not, in the middle of a run.

namespace duet {
namespace {

using namespace testing;

using Ranks = std::shared_ptr<Communicator>;

struct Growing : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", torch::ones({2})),
             bias = register_parameter("bias", torch::ones({2}));
  at::Tensor cache = register_buffer("cache", torch::zeros({2}));
};

// Runs six steps; `act` may do something of this rank's after each.
NamedTensors train(const std::string& mode, const Ranks& ranks,
                   const std::function<void(Growing&, int64_t step)>& act) {
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.1};
  options.distributed.communicator = ranks;
  const auto model = std::make_shared<Growing>();
  const auto loss = [](Growing& net, const Batch& batch) {
    net.cache.add_(1);
    return (batch["x"] * net.weight + net.bias).mean() + 0 * net.cache.sum();
  };
  const auto trainer = make_trainer(mode, make_task(model, loss), options);
  for (int64_t step = 0; step < 6; ++step) {
    trainer->step(Batch{{"x", torch::ones({2})}});
    act(*model, step);
  }
  trainer->finish();
  return weights_of(*trainer);
}

void expect_all(const std::vector<RankResult>& results, const std::vector<int>& codes, const std::string& text) {
  bool said = false;
  for (const RankResult& result : results) {
    EXPECT_NE(std::find(codes.begin(), codes.end(), result.exit_code), codes.end())
        << result.exit_code << ": " << result.error;
    said = said || result.error.find(text) != std::string::npos;
    EXPECT_LT(result.seconds, kAtOnce);
  }
  EXPECT_TRUE(said) << "'" << text << "' is not in: " << results[0].error;
}

// What differs when the ranks meet before a step is an error of all of them, in words.
const ConnectOptions kLong{.start_timeout = 60, .timeout = 60};

void expect_same_error(const std::vector<RankResult>& results, const std::string& text) {
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_NE(result.error.find(text), std::string::npos) << "'" << text << "' is not in: " << result.error;
  }
}

const ConnectOptions kShort{.start_timeout = 200, .timeout = 3};

class OneRank : public ::testing::TestWithParam<const char*> {};

// Another buffer, or the same memory resized in place.
TEST_P(OneRank, HasABufferOfAnotherShape) {
  const auto run = [](int64_t rank, const std::function<void(at::Tensor&)>& change) {
    return run_ranks(
        2,
        [&](const Ranks& ranks) {
          return train(GetParam(), ranks, [&](Growing& model, int64_t step) {
            if (step == 2 && ranks->rank() == rank) change(model.cache);
          });
        },
        kLong);
  };
  const std::string differs = "rank 1 has other buffers than rank 0 (cache: Float ";
  const auto grow = [](at::Tensor& cache) { cache.set_data(torch::zeros({64})); };
  expect_same_error(run(0, grow), differs + "[2]; on rank 0 cache: Float [64])");
  expect_same_error(run(1, grow), differs + "[64]; on rank 0 cache: Float [2])");
  expect_same_error(run(1, [](at::Tensor& cache) { cache.resize_({1}).zero_(); }),
                    differs + "[1]; on rank 0 cache: Float [2])");
}

TEST(OneRankEager, BuffersMayGrowOnAllRanksAlike) {
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    return train("eager", ranks, [&](Growing& model, int64_t step) {
      if (step == 2) model.cache.set_data(torch::full({8}, static_cast<float>(ranks->rank())));
    });
  });
  expect_same_on_all(results);
  EXPECT_EQ(results[1].at("cache").sum().item<float>(), 8 * 3);
}

TEST_P(OneRank, FreezesAParameter) {
  const auto results = run_ranks(
      2,
      [&](const Ranks& ranks) {
        return train(GetParam(), ranks, [&](Growing& model, int64_t step) {
          if (step == 2 && ranks->rank() == 1) model.bias.requires_grad_(false);
        });
      },
      kLong);
  expect_same_error(results, "rank 1 trains other parameters than rank 0 (bias: frozen; on rank 0 bias: trains)");
}

// After the ranks have met: nobody sees it before the timeout.
class FreezeLate : public Hook {
 public:
  explicit FreezeLate(at::Tensor parameter) : parameter_(std::move(parameter)) {}
  std::string name() const override { return "freeze"; }
  void before_train_iter(TrainContext& context) override { parameter_.requires_grad_(context.progress.step < 3); }

 private:
  at::Tensor parameter_;
};

TEST_P(OneRank, FreezesAParameterInTheMiddleOfAnStep) {
  const auto results = run_ranks(
      2,
      [&](const Ranks& ranks) {
        TrainerOptions options;
        options.optimizer = SGD{.lr = 0.1};
        options.distributed.communicator = ranks;
        const auto model = std::make_shared<Growing>();
        const auto loss = [](Growing& net, const Batch& batch) { return (batch["x"] * net.weight + net.bias).mean(); };
        const auto trainer = make_trainer(GetParam(), make_task(model, loss), options);
        if (ranks->rank() == 1) trainer->add_hook(std::make_unique<FreezeLate>(model->bias));
        for (int64_t step = 0; step < 6; ++step) trainer->step(Batch{{"x", torch::ones({2})}});
        return NamedTensors();
      },
      kShort);
  expect_all(results, {2, 6}, "rank 1 in step 3 (agreement on what trains)");
}

// What differs and is the same again when it matters is no error.
TEST_P(OneRank, MayHaveABufferOfAnotherShapeBetweenSteps) {
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    TrainerOptions options;
    options.optimizer = SGD{.lr = 0.1};
    options.distributed.communicator = ranks;
    const auto model = std::make_shared<Growing>();
    const auto trainer = make_trainer(GetParam(),
                                      make_task(model,
                                                [](Growing& net, const Batch& batch) {
                                                  if (net.cache.numel() != 2) net.cache.set_data(torch::zeros({2}));
                                                  net.cache.add_(1);
                                                  return (batch["x"] * net.weight + net.bias).mean();
                                                }),
                                      options);
    for (int64_t step = 0; step < 6; ++step) {
      trainer->step(Batch{{"x", torch::ones({2})}});
      if (step == 2 && ranks->rank() == 1) model->cache.set_data(torch::zeros({5}));
    }
    trainer->finish();
    return weights_of(*trainer);
  });
  expect_same_on_all(results);
}

// Patience is for a rank that works; the process below does not, and nobody sees its connections break. Rank 0 has the
// store.
TEST(OneRankEager, IsStoppedWhileTheOthersArePatient) {
  for (const std::size_t stopped : {0, 1}) {
    const auto results = run_ranks(3,
                                   [&](const Ranks& ranks) {
                                     ranks->set_running(true);
                                     ranks->set_patient(true);
                                     ranks->barrier();
                                     if (ranks->rank() == static_cast<int64_t>(stopped)) raise(SIGSTOP);
                                     ranks->barrier();
                                     return NamedTensors();
                                   },
                                   {.start_timeout = 200, .timeout = 2});
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (rank == stopped) continue;
      EXPECT_EQ(results[rank].exit_code, 6);
      EXPECT_NE(results[rank].error.find("rank " + std::to_string(stopped) + " is dead or stopped"), std::string::npos)
          << results[rank].error;
      EXPECT_LT(results[rank].seconds, kAtOnce);  // not the start's timeout
    }
  }
}

// Throws in the last hook of a run, when all is done.
class LateError : public Hook {
 public:
  std::string name() const override { return "late"; }
  void after_train(TrainContext&) override { throw DataError("[LateError] the disk is full"); }
};

TEST_P(OneRank, FailsAfterTheLastStep) {
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    TrainerOptions options;
    options.distributed.communicator = ranks;
    const ToyTask task = mlp_task();
    const auto trainer = make_trainer(GetParam(), task.make(), options);
    if (ranks->rank() == 1) trainer->add_hook(std::make_unique<LateError>());
    trainer->step(task.batch(4, 1));
    trainer->finish();
    return NamedTensors();
  });
  EXPECT_EQ(results[1].exit_code, 3) << results[1].error;
  EXPECT_EQ(results[0].exit_code, 6) << results[0].error;
  EXPECT_NE(results[0].error.find("the disk is full"), std::string::npos) << results[0].error;
}

// A metric whose sums depend on what a rank has seen.
class BadSums : public MeanLoss {
 public:
  BadSums(int64_t size, std::string name) : size_(size), name_(std::move(name)) {}
  std::vector<std::string> names() const override { return {name_}; }
  MetricValues compute() const override { return {{name_, 0.0}}; }
  std::vector<at::Tensor> sums(at::Device) override {
    return size_ == 0 ? std::vector<at::Tensor>() : std::vector<at::Tensor>{at::zeros({size_}, at::kDouble)};
  }

 private:
  int64_t size_;
  std::string name_;
};

TEST_P(OneRank, HasOtherSumsOfAMetric) {
  for (const int64_t size : {0, 7}) {
    const auto results = run_ranks(2, [&](const Ranks& ranks) {
      TrainerOptions options;
      options.distributed.communicator = ranks;
      const ToyTask task = mlp_task();
      const auto trainer = make_trainer(GetParam(), task.make(), options);
      trainer->add_metric(std::make_unique<BadSums>(ranks->rank() == 1 ? size : 5, "recall"));
      trainer->validate(*share_of(task.batch(8, 7).items(), 4, ranks.get()));
      return NamedTensors();
    });
    for (const RankResult& result : results) {
      EXPECT_EQ(result.exit_code, 2) << result.error;
      EXPECT_NE(result.error.find("on rank 0 recall: Double [5]"), std::string::npos) << result.error;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, OneRank, ::testing::Values("eager", "graph"),
                         [](const auto& mode) { return std::string(mode.param); });

}  // namespace
}  // namespace duet
