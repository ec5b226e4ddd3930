#include <functional>
#include <string>
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "core/hook.h"
#include "core/task.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/modes.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

// Ranks read parts of the same data, each its own, and keep the same weights; where not, they hear of it.

namespace duet {
namespace {

using namespace testing;

// What each rank does in its own way.
struct Own {
  int64_t samples = 40, batch_size = 4;
  uint64_t seed = 3;
  bool drop_last = false, shuffle = true;
  bool endless = false;
  bool shares = true;    // its data are a part of those of all ranks
  int64_t as_rank = -1;  // the part it takes; -1: its own
  int64_t start = 0;     // samples before its first one
  std::string does = "training";
};

std::unique_ptr<DataLoader> loader(const Own& own, const Communicator& ranks) {
  std::unique_ptr<Sampler> sampler = std::make_unique<EpochSampler>(own.samples, own.shuffle, own.seed);
  if (own.endless) sampler = std::make_unique<InfiniteSampler>(own.samples, own.shuffle, own.seed);
  sampler->next(own.start);
  const int64_t rank = own.as_rank < 0 ? ranks.rank() : own.as_rank;
  if (own.shares) {
    sampler = std::make_unique<DistributedSampler>(std::move(sampler), rank, ranks.world_size(), own.drop_last);
  }
  auto samples = std::make_shared<TensorDataset>(numbered_samples(mlp_task(), own.samples));
  return std::make_unique<DataLoader>(std::move(samples), std::move(sampler),
                                      DataLoaderOptions{.batch_size = own.batch_size});
}

class DistributedData : public InBothModes {
 protected:
  static std::unique_ptr<BaseTrainer> trainer(const Ranks& ranks, int64_t steps = 18) {
    TrainerOptions options;
    options.distributed.communicator = ranks;
    options.loop.max_steps = steps;
    return make_trainer(GetParam(), mlp_task().make(), options);
  }
  // What each rank does.
  static std::vector<RankResult> run(const std::function<Own(int64_t rank)>& how) {
    return run_ranks(2, [&](const Ranks& ranks) {
      const Own own = how(ranks->rank());
      const auto made = trainer(ranks);
      const auto data = loader(own, *ranks);
      if (own.does == "training") made->train(*data);
      if (own.does == "validation") made->validate(*data);
      if (own.does == "test") made->test(*data);
      return weights_of(*made);
    });
  }
};

TEST_P(DistributedData, OtherwiseReadIsAnError) {
  const std::vector<std::pair<std::string, Own>> cases = {
      {"rank 1 reads the training data otherwise than rank 0 (seed: 5; on rank 0 seed: 3)", {.seed = 5}},
      {"(batch_size: 2; on rank 0 batch_size: 4)", {.batch_size = 2}},
      {"(size: 41; on rank 0 size: 40)", {.samples = 41}},
      {"(drop_last: true; on rank 0 drop_last: false)", {.drop_last = true}},
      {"(shuffle: false; on rank 0 shuffle: true)", {.shuffle = false}},
      {"(position: 8; on rank 0 position: 0)", {.endless = true, .start = 8}},
      {"the part of the training data that rank 1 reads is: that of rank 0 of 2, expected one of 2", {.as_rank = 0}},
      {"the part of the training data that rank 1 reads is: not shared, expected one of 2", {.shares = false}},
      {"rank 1 reads the validation data otherwise than rank 0 (seed: 5; ", {.seed = 5, .does = "validation"}},
      {"rank 1 reads the test data otherwise than rank 0 (seed: 5; ", {.seed = 5, .does = "test"}}};
  for (const auto& [text, other] : cases) {
    const Own usual{.endless = other.endless, .does = other.does};
    expect_error_on_all(run([&](int64_t rank) { return rank == 1 ? other : usual; }), 2, text);
  }
  expect_error_on_all(run([](int64_t rank) { return Own{.shares = rank == 1}; }), 2,
                      "that rank 0 reads is: not shared");
}

// The position of a rank without a sample of the last batch is another one then; where one rank has stopped, only the
// other has fetched something.
TEST_P(DistributedData, MayBeReadAgain) {
  for (const bool stops : {false, true}) {
    expect_no_error(run_ranks(2, [&](const Ranks& ranks) {
      const auto made = trainer(ranks);
      made->on(HookPoint::kAfterTrainIter, [&](TrainContext& context) {
        if (stops && context.progress.step == 2 && ranks->rank() == 1) context.control.request_stop("enough");
      });
      const auto data = loader({.samples = 41}, *ranks), validation = loader({.samples = 41}, *ranks);
      made->train(*data, stops ? nullptr : validation.get());
      made->validate(*validation);
      made->validate(*data);
      return weights_of(*made);
    }));
  }
}

constexpr const char* kAllTheSame = "all ranks begin with the same micro-batch";

void expect_once(const std::string& text, const std::string& part) {
  ASSERT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  EXPECT_EQ(text.find(part), text.rfind(part)) << "'" << part << "' is more than once in: " << text;
}

// Runs it on two ranks, and gives what they write to the log.
std::string log_of(const std::function<void(const Ranks&)>& body) {
  return stderr_of([&] {
    expect_no_error(run_ranks(2, [&](const Ranks& ranks) {
      body(ranks);
      return NamedTensors();
    }));
  });
}

// By train(), and in a loop of one's own; `seed` is that of rank 1.
TEST_P(DistributedData, AWarningTellsThatAllReadTheSame) {
  const auto trained = [](uint64_t seed) {
    return log_of([=](const Ranks& ranks) {
      trainer(ranks, 20)->train(*loader({.seed = ranks->rank() == 1 ? seed : 3, .shares = false}, *ranks));
    });
  };
  const auto stepped = [](uint64_t seed) {
    return log_of([=](const Ranks& ranks) {
      const auto made = trainer(ranks);
      for (int step = 0; step < 3; ++step) made->step(mlp_task().batch(4, ranks->rank() == 1 ? seed : 3));
      made->finish();
    });
  };
  expect_once(trained(3), kAllTheSame);
  expect_once(stepped(3), kAllTheSame);
  EXPECT_EQ((trained(4) + stepped(4)).find(kAllTheSame), std::string::npos);
}

TEST_P(DistributedData, AWarningTellsOfWeightsThatDiffer) {
  // A hook that writes to a weight after the second of four steps.
  const auto log_of_writer = [](bool on_all, bool saves) {
    return log_of([=](const Ranks& ranks) {
      const TempDir folder;
      const auto made = trainer(ranks, 4);
      made->on(HookPoint::kAfterTrainIter, [&](TrainContext& context) {
        if (context.progress.step == 2 && (ranks->rank() == 1 || on_all)) {
          const at::NoGradGuard no_grad;
          context.task.named_parameters().back().second.detach().add_(0.25);
        }
        if (saves) made->save(folder / std::to_string(context.progress.step));
      });
      made->train(*loader({}, *ranks));
    });
  };
  for (const bool saves : {false, true}) {
    const std::string text = log_of_writer(false, saves);
    expect_once(text, "' of rank 1 has other values than that of rank 0");
    expect_once(text, saves ? "after step 2 parameter '" : "after step 4 parameter '");
  }
  EXPECT_EQ(log_of_writer(true, true).find("has other values"), std::string::npos);
}

// What one rank alone does at the end, where the others do not wait for it, is no comparison of weights.
TEST_P(DistributedData, ACallOfOneRankAtTheEndIsAnError) {
  for (const int64_t caller : {0, 1}) {
    const auto results = run_ranks(2, [&](const Ranks& ranks) {
      const TempDir folder;
      const auto made = trainer(ranks);
      made->on(HookPoint::kAfterTrain, [&](TrainContext&) {
        if (ranks->rank() == caller) made->save(folder / "c");
      });
      made->train(*loader({}, *ranks));
      return weights_of(*made);
    });
    for (const RankResult& result : results) expect_contains(result.error, {"another call"});
  }
}

DUET_IN_BOTH_MODES(DistributedData);

}  // namespace
}  // namespace duet
