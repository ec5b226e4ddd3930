#include <string>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "graph/graph_trainer.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

// What several ranks add to a captured step, and that one process has nothing of it.

namespace duet {
namespace {

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

bool same_values(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].first != b[i].first || !testing::same_bits(a[i].second, b[i].second)) return false;
  }
  return true;
}

at::Tensor whole_number(int64_t value) { return at::scalar_tensor(value, at::kLong); }

TEST(DistributedProgram, OfAWorldOfOneIsThatOfATrainerThatKnowsNoRanks) {
  const auto one = testing::run_ranks(1, [](const std::shared_ptr<Communicator>& ranks) {
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

// To try collectives and their capture on one machine with one device.
TEST(DistributedProgram, OfAWorldOfOneWithACommunicatorHoldsItsCollectives) {
  for (const char* device : {"cpu", "cuda"}) {
    const auto one = testing::run_processes(1, [device](const Launch& launch) -> NamedTensors {
      if (device == std::string("cuda") && !cuda_available()) return {};
      const auto train = [&](const char* mode, bool alone) {
        seed_all(1);
        const testing::ToyTask task = testing::partial_task();
        TrainerOptions options;
        options.loop = {.max_steps = 30, .accumulate = 2};
        options.device = device;
        options.clip_grad = ClipNorm{.max_norm = 0.5};
        if (alone)
          options.distributed.communicator = connect(launch, parse_device(device), {.force_collectives = true});
        const auto trainer = testing::make_trainer(mode, task.make(), options);
        trainer->train(*testing::share_of(task.batch(106, 7).items(), 8, options.distributed.communicator.get()));
        NamedTensors result = testing::weights_of(*trainer);
        if (const auto* graph = dynamic_cast<const GraphTrainer*>(trainer.get())) {
          result.emplace_back("sums", whole_number(count(graph->program_text(), "start_sum_")));
        }
        return result;
      };
      NamedTensors result{{"eager", at::scalar_tensor(same_values(train("eager", true), train("eager", false)))}};
      const NamedTensors graph = train("graph", true);
      result.emplace_back("sums", graph.back().second);
      result.emplace_back(
          "graph", at::scalar_tensor(same_values(NamedTensors(graph.begin(), graph.end() - 1), train("eager", false))));
      return result;
    });
    testing::expect_no_error(one);
    if (one[0].tensors.empty()) continue;  // no GPU
    EXPECT_TRUE(one[0].at("eager").item<bool>()) << device;
    EXPECT_TRUE(one[0].at("graph").item<bool>()) << device;
    if (device == std::string("cuda")) continue;      // a CUDA graph has no text
    EXPECT_EQ(one[0].at("sums").item<int64_t>(), 2);  // a bucket, and the loss
  }
}

TEST(DistributedProgram, HoldsOneSumForEachBucketAndOneForTheValues) {
  const auto results = testing::run_ranks(2, [](const std::shared_ptr<Communicator>& ranks) {
    const testing::ToyTask task = testing::mlp_task();  // four parameters
    const std::string one = program_of(task, {.communicator = ranks});
    const std::string each = program_of(task, {.communicator = ranks, .bucket_bytes = 1, .first_bucket_bytes = 1});
    return NamedTensors{{"one", whole_number(count(one, "duet::start_sum_"))},
                        {"each", whole_number(count(each, "duet::start_sum_"))},
                        {"finished", whole_number(count(each, "duet::finish_"))}};
  });
  testing::expect_same_on_all(results);
  EXPECT_EQ(results[0].at("one").item<int64_t>(), 2);
  EXPECT_EQ(results[0].at("each").item<int64_t>(), 5);
  EXPECT_EQ(results[0].at("finished").item<int64_t>(), 5);
}

// The gradients, a double for each logged value and the loss, and the buffers.
TEST(DistributedProgram, SendsWhatTheTheorySays) {
  for (const char* mode : {"eager", "graph"}) {
    const auto results = testing::run_ranks(2, [mode](const std::shared_ptr<Communicator>& ranks) {
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
