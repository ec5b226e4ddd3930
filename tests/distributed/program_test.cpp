#include <string>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "graph/graph_trainer.h"
#include "make_trainer.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

// What several ranks add to a captured step, and that one process has nothing of it.

namespace duet {
namespace {

using testing::Ranks;

std::string program_of(const testing::ToyTask& task, const DistributedOptions& distributed) {
  seed_all(1);
  TrainerOptions options;
  options.loop.max_steps = 6;
  options.device = "cpu";
  options.distributed = distributed;
  GraphTrainer trainer(task.make(), options);
  trainer.train(*testing::share_of(task.batch(16, 7).items(), 4, distributed.communicator.get()));
  return trainer.program_text();
}

int64_t count(const std::string& text, const std::string& word) {
  int64_t found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

at::Tensor whole_number(int64_t value) { return at::scalar_tensor(value, at::kLong); }

TEST(DistributedProgram, OfAWorldOfOneIsThatOfATrainerThatKnowsNoRanks) {
  const auto one = testing::run_ranks(1, [](const Ranks& ranks) {
    const testing::ToyTask task = testing::cnn_task();
    const std::string with = program_of(task, {.communicator = ranks}), without = program_of(task, {});
    return NamedTensors{{"same", whole_number(with == without)},
                        {"ops", whole_number(count(without, "\n"))},
                        {"sums", whole_number(count(with, "start_sum_"))}};
  });
  testing::expect_no_error(one);
  EXPECT_EQ(one[0].at("same").item<int64_t>(), 1);
  EXPECT_GT(one[0].at("ops").item<int64_t>(), 10);
  EXPECT_EQ(one[0].at("sums").item<int64_t>(), 0);
}

// Its weights, and how many sums its program holds; a CUDA graph has no text.
NamedTensors trained(const char* mode, const char* device, const Ranks& ranks) {
  seed_all(1);
  const testing::ToyTask task = testing::partial_task();
  TrainerOptions options;
  options.loop = {.max_steps = 30, .accumulate = 2};
  options.device = device;
  options.clip_grad = ClipNorm{.max_norm = 0.5};
  options.distributed.communicator = ranks;
  const auto trainer = make_trainer(parse_mode(mode), task.make(), options);
  trainer->train(*testing::share_of(task.batch(106, 7).items(), 8, ranks.get()));
  NamedTensors result = testing::weights_of(*trainer);
  const auto* graph = dynamic_cast<const GraphTrainer*>(trainer.get());
  const std::string text = graph != nullptr ? graph->program_text() : "";
  result.emplace_back("sums", whole_number(count(text, "start_sum_")));
  return result;
}

// To try collectives and their capture on one machine with one device.
TEST(DistributedProgram, OfAWorldOfOneWithACommunicatorHoldsItsCollectives) {
  for (const char* device : {"cpu", "cuda"}) {
    const auto weights = [&](const char* mode, bool forced) {
      return testing::run_processes(1, [&](const Launch& launch) {
        if (device == std::string("cuda") && !cuda_available()) return NamedTensors();
        const ConnectOptions force{.force_collectives = true};
        return trained(mode, device, forced ? connect(launch, parse_device(device), force) : one_process());
      })[0];
    };
    // On a GPU sums over a gradient take another order where it lies in a bucket: there the modes are compared.
    const testing::RankResult without = weights("eager", device == std::string("cuda"));
    for (const char* mode : {"eager", "graph"}) {
      const testing::RankResult with = weights(mode, true);
      testing::expect_no_error({without, with});
      ASSERT_EQ(with.tensors.size(), without.tensors.size());
      const bool has_text = device == std::string("cpu") && mode == std::string("graph");
      for (const auto& [name, tensor] : with.tensors) {
        if (name != "sums") EXPECT_TRUE(testing::same_bits(tensor, without.at(name))) << device << mode << name;
        if (name == "sums" && has_text) EXPECT_EQ(tensor.item<int64_t>(), 2);  // a bucket, and the loss
      }
    }
  }
}

// The gradients, a double for each logged value and the loss, and the buffers.
TEST(DistributedProgram, SendsWhatTheTheorySays) {
  for (const char* mode : {"eager", "graph"}) {
    const auto results = testing::run_ranks(2, [mode](const Ranks& ranks) {
      const testing::ToyTask task = testing::cnn_task();
      const auto bytes = [&](int64_t steps) {
        TrainerOptions options;
        options.loop = {.max_steps = steps, .accumulate = 2};
        options.distributed.communicator = ranks;
        const auto trainer = testing::make_trainer(mode, task.make(), options);
        const int64_t before = ranks->bytes_started();
        trainer->train(*testing::share_of(task.batch(64, 7).items(), 4, ranks.get()));
        return ranks->bytes_started() - before;
      };
      int64_t state = 2 * 8;  // the loss and "error"
      const auto task_made = task.make();
      for (const auto& [name, tensor] : task_made->named_parameters()) state += static_cast<int64_t>(tensor.nbytes());
      for (const auto& [name, tensor] : task_made->named_buffers()) state += static_cast<int64_t>(tensor.nbytes());
      const int64_t few = bytes(4), many = bytes(11);
      return NamedTensors{{"few", whole_number(few)}, {"many", whole_number(many)}, {"theory", whole_number(state)}};
    });
    testing::expect_same_on_all(results);
    const int64_t theory = results[0].at("theory").item<int64_t>();
    EXPECT_EQ(results[0].at("few").item<int64_t>(), 4 * theory) << mode;
    EXPECT_EQ(results[0].at("many").item<int64_t>(), 11 * theory) << mode;
  }
}

}  // namespace
}  // namespace duet
