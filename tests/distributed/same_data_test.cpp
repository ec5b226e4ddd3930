#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <duet/core/error.h>
#include <duet/core/model/module_task.h>
#include <duet/hooks/callback_hook.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "../support/log_lines.h"
#include "../support/rank_data.h"
#include "../support/ranks.h"
#include "../support/toy_tasks.h"
#include "../support/trainer_runs.h"

// Ranks read parts of the same data, each its own, and keep the same weights; where not, they hear of it.

namespace duet {
namespace {

using namespace testing;

using Ranks = std::shared_ptr<Communicator>;

// What each rank does in its own way.
struct Own {
  int64_t samples = 40, batch_size = 4, num_workers = 0;
  uint64_t seed = 3;
  bool drop_last = false, shuffle = true;
  bool shares = true;      // its data are a part of those of all ranks
  int64_t as_rank = -1;    // the part it takes; -1: its own
  bool validates = false;  // rather than trains
};

std::unique_ptr<DataLoader> loader(const Own& own, const Communicator& ranks) {
  std::unique_ptr<Sampler> sampler = std::make_unique<EpochSampler>(own.samples, own.shuffle, own.seed);
  const int64_t rank = own.as_rank < 0 ? ranks.rank() : own.as_rank;
  if (own.shares) {
    sampler = std::make_unique<DistributedSampler>(std::move(sampler), rank, ranks.world_size(), own.drop_last);
  }
  auto samples = std::make_shared<TensorDataset>(numbered_samples(mlp_task(), own.samples));
  return std::make_unique<DataLoader>(
      std::move(samples), std::move(sampler),
      DataLoaderOptions{.batch_size = own.batch_size, .num_workers = static_cast<int>(own.num_workers)});
}

class DistributedData : public ::testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<BaseTrainer> trainer(const Ranks& ranks) {
    TrainerOptions options;
    options.distributed.communicator = ranks;
    options.loop.max_epochs = 3;
    return make_trainer(GetParam(), mlp_task().make(), options);
  }
  // What each rank does, and what all write to the log.
  static std::vector<RankResult> run(const std::function<Own(int64_t rank)>& how) {
    return run_ranks(2, [&](const Ranks& ranks) {
      const Own own = how(ranks->rank());
      const auto made = trainer(ranks);
      const auto data = loader(own, *ranks);
      own.validates ? static_cast<void>(made->validate(*data)) : made->train(*data);
      return weights_of(*made);
    });
  }
};

void expect_all(const std::vector<RankResult>& results, const std::string& text) {
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_NE(result.error.find(text), std::string::npos) << "'" << text << "' is not in: " << result.error;
  }
}

TEST_P(DistributedData, OtherwiseReadIsAnError) {
  const std::vector<std::pair<std::string, Own>> cases = {
      {"reads the training data otherwise than rank 0 (seed: 5; on rank 0 seed: 3)", {.seed = 5}},
      {"(batch_size: 2; on rank 0 batch_size: 4)", {.batch_size = 2}},
      {"(size: 41; on rank 0 size: 40)", {.samples = 41}},
      {"(drop_last: true; on rank 0 drop_last: false)", {.drop_last = true}},
      {"(shuffle: false; on rank 0 shuffle: true)", {.shuffle = false}},
      {"the training data of rank 1 are the part of rank 0 of 2, expected the part of rank 1 of 2", {.as_rank = 0}},
      {"the training data of rank 1 are not shared with the other ranks", {.shares = false}},
      {"reads the validation data otherwise than rank 0 (seed: 5; ", {.seed = 5, .validates = true}}};
  for (const auto& [text, other] : cases) {
    expect_all(run([&](int64_t rank) { return rank == 1 ? other : Own{.validates = other.validates}; }), text);
  }
}

TEST_P(DistributedData, OtherWorkersAndAnUnevenTailAreNone) {
  for (const bool validates : {false, true}) {
    const auto results = run([&](int64_t rank) {
      return Own{.samples = 41, .num_workers = 2 * rank, .validates = validates};  // the last batch is rank 0's alone
    });
    expect_no_error(results);
    expect_same_on_all(results);
  }
}

// The position of a rank without a sample of the last batch is another one then.
TEST_P(DistributedData, MayBeReadAgain) {
  const auto results = run_ranks(2, [&](const Ranks& ranks) {
    const auto made = trainer(ranks);
    const auto data = loader({.samples = 41}, *ranks), validation = loader({.samples = 41}, *ranks);
    made->train(*data, validation.get());
    made->validate(*validation);
    made->validate(*data);
    return weights_of(*made);
  });
  expect_no_error(results);
}

constexpr const char* kAllTheSame = "all train on the same samples";

// Runs it on two ranks, and gives what they write to the log.
std::string log_of(const std::function<void(const Ranks&)>& body) {
  return stderr_of([&] {
    expect_no_error(run_ranks(2, [&](const Ranks& ranks) {
      body(ranks);
      return NamedTensors();
    }));
  });
}

TEST_P(DistributedData, AWarningTellsThatAllReadTheSame) {
  const auto told = [](uint64_t seed_of_1) {
    return log_of([=](const Ranks& ranks) {
      const uint64_t seed = ranks->rank() == 1 ? seed_of_1 : 3;
      trainer(ranks)->train(*loader({.seed = seed, .shares = false}, *ranks));
    });
  };
  const std::string text = told(3);
  ASSERT_NE(text.find(kAllTheSame), std::string::npos) << text;
  EXPECT_EQ(text.find(kAllTheSame), text.rfind(kAllTheSame)) << "more than once: " << text;
  EXPECT_EQ(told(4).find(kAllTheSame), std::string::npos);
}

// A hook that writes to a weight, on all ranks or on one.
std::string log_of_a_writer(const char* mode, bool on_all) {
  return log_of([=](const Ranks& ranks) {
    TrainerOptions options;
    options.distributed.communicator = ranks;
    options.loop.max_updates = 4;
    const auto trainer = make_trainer(mode, mlp_task().make(), options);
    auto hook = std::make_unique<CallbackHook>("writer");
    hook->on(HookPoint::kAfterTrainIter, [&](TrainContext& context) {
      if (context.update != 2 || (ranks->rank() == 0 && !on_all)) return;
      const at::NoGradGuard no_grad;
      context.task.named_parameters().back().second.detach().add_(0.25);
    });
    trainer->add_hook(std::move(hook));
    trainer->train(*loader({}, *ranks));
  });
}

TEST_P(DistributedData, AWarningTellsOfWeightsThatDiffer) {
  const std::string text = log_of_a_writer(GetParam(), false);
  EXPECT_NE(text.find("after update 4 parameter '"), std::string::npos) << text;
  EXPECT_NE(text.find("' of rank 1 has other values than that of rank 0"), std::string::npos) << text;
  EXPECT_EQ(log_of_a_writer(GetParam(), true).find("has other values"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Modes, DistributedData, ::testing::Values("eager", "graph"),
                         [](const auto& mode) { return std::string(mode.param); });

}  // namespace
}  // namespace duet
