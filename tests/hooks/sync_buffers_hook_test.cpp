#include "hooks/sync_buffers_hook.h"
#include <barrier>
#include <thread>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include "tests/support/fake_communicator.h"
#include "tests/support/fakes.h"
#include "tests/support/loop_runs.h"

namespace duet {
namespace {

constexpr int64_t kRanks = 3;

// Where three threads meet.
struct Meeting {
  std::barrier<> barrier{kRanks};
  std::vector<at::Tensor> values{kRanks};
};

// One of them, as a rank of a group.
class Rank : public testing::FakeCommunicator {
 public:
  Rank(Meeting& meeting, int64_t rank)
      : FakeCommunicator(
            rank, kRanks,
            [&meeting, rank](const at::Tensor& values) {
              exchange(meeting, rank, values);
              values.copy_(meeting.values[0] + meeting.values[1] + meeting.values[2]);
              meeting.barrier.arrive_and_wait();
            },
            [&meeting, rank](const at::Tensor& values, int64_t root) {
              exchange(meeting, rank, values);
              values.copy_(meeting.values[root]);
              meeting.barrier.arrive_and_wait();
            }) {}

 private:
  static void exchange(Meeting& meeting, int64_t rank, const at::Tensor& values) {
    EXPECT_TRUE(values.is_contiguous());
    meeting.values[rank] = values.clone();
    meeting.barrier.arrive_and_wait();
  }
};

class BufferTask : public FakeTask {
 public:
  explicit BufferTask(NamedTensors buffers) : buffers_(std::move(buffers)) {}
  NamedTensors named_buffers() const override { return buffers_; }

 private:
  NamedTensors buffers_;
};

NamedTensors buffers_of(int64_t rank) {
  const double r = static_cast<double>(rank);
  return {{"mean", at::tensor({1.0 + r, 2.0 * r}, at::kFloat)},
          {"wide", at::full({2, 2}, 10 * r, at::kDouble).t()},
          {"half", at::full({2}, 60000.0, at::kHalf)},  // whose sum is infinite in 16 bits
          {"count", at::scalar_tensor(7 + rank, at::kLong)},
          {"mask", at::full({2}, rank == 0, at::kBool)},
          {"more", at::full({3}, -r, at::kFloat)},
          {"phase", at::full({2}, c10::complex<double>(r, 2), at::kComplexDouble)}};
}

TEST(SyncBuffersHook, TakesTheMeanOverProcessesAndWholeNumbersFromTheFirst) {
  Meeting meeting;
  std::vector<NamedTensors> buffers;
  std::vector<const void*> places;
  std::vector<std::shared_ptr<Rank>> ranks;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    buffers.push_back(buffers_of(rank));
    ranks.push_back(std::make_shared<Rank>(meeting, rank));
    for (const auto& entry : buffers.back()) places.push_back(entry.second.const_data_ptr());
  }
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      BufferTask task(buffers[rank]);
      FakeRun run;
      TrainContext context{task, run.hyper_parameters, [&] { return run.state.state_dict(); }, "eager", ""};
      context.communicator = ranks[rank].get();
      SyncBuffersHook hook;
      hook.before_train(context);
      hook.after_train_epoch(context);
    });
  }
  for (std::thread& thread : threads) thread.join();

  std::size_t place = 0;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ranks[rank]->calls, 6);  // one message for each of the six types
    for (const auto& entry : buffers[rank])
      EXPECT_EQ(entry.second.const_data_ptr(), places[place++]) << entry.first << " moved";
    const auto value = [&](std::size_t i) { return buffers[rank][i].second; };
    EXPECT_TRUE(at::equal(value(0), at::tensor({2.0, 2.0}, at::kFloat)));
    EXPECT_TRUE(at::equal(value(1), at::full({2, 2}, 10.0, at::kDouble)));
    EXPECT_TRUE(at::equal(value(2), at::full({2}, 60000.0, at::kHalf)));
    EXPECT_EQ(value(3).item<int64_t>(), 7);
    EXPECT_TRUE(at::equal(value(4), at::full({2}, true, at::kBool)));
    EXPECT_TRUE(at::equal(value(5), at::full({3}, -1.0, at::kFloat)));
    EXPECT_TRUE(at::equal(value(6), at::full({2}, c10::complex<double>(1, 2), at::kComplexDouble)));
  }
}

// A group of three whose other two have values that are larger by 1.5.
class Others : public testing::FakeCommunicator {
 public:
  Others()
      : FakeCommunicator(
            0, kRanks, [](const at::Tensor& values) { values.mul_(kRanks).add_(3); },
            [](const at::Tensor& /*values*/, int64_t root) { EXPECT_EQ(root, 0); }) {}
};

TEST(SyncBuffersHook, IsDoneOnceForTheSameStep) {
  BufferTask task(buffers_of(0));
  FakeRun run;
  TrainContext context{task, run.hyper_parameters, [&] { return run.state.state_dict(); }, "eager", ""};
  Others group;
  context.communicator = &group;
  SyncBuffersHook hook;
  hook.before_train(context);
  context.progress.step = 3;
  hook.before_val(context);
  const int once = group.sums;
  EXPECT_EQ(once, 4);  // float, double, half, complex
  hook.before_val(context);
  EXPECT_EQ(group.sums, once);
  context.progress.step = 4;
  hook.after_train_epoch(context);
  hook.before_val(context);
  EXPECT_EQ(group.sums, 2 * once);
}

TEST(SyncBuffersHook, DoesNothingAlone) {
  BufferTask task(buffers_of(1));
  FakeRun run;
  TrainContext context{task, run.hyper_parameters, [&] { return run.state.state_dict(); }, "eager", ""};
  SyncBuffersHook hook;
  ::testing::internal::CaptureStderr();
  hook.before_train(context);
  hook.after_train_epoch(context);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("[SyncBuffersHook] there is one process"), std::string::npos);
  EXPECT_TRUE(at::equal(task.named_buffers()[0].second, buffers_of(1)[0].second));
}

// The hook in a run that is in fact one process.
class SyncedHook : public SyncBuffersHook {
 public:
  void after_train_epoch(TrainContext& context) override {
    context.communicator = &others_;
    SyncBuffersHook::after_train_epoch(context);
    context.communicator = one_process().get();
  }

 private:
  Others others_;
};

class SyncBuffers : public ::testing::TestWithParam<const char*> {};

// BatchNorm's statistics after four epochs of two steps each. Its step is recursive: r <- 0.9 r + 0.1 x, then + 1.
TEST_P(SyncBuffers, ChangesBuffersWhereACapturedStepFindsThem) {
  const auto statistics = [](bool synced) {
    LoopOptions loop;
    loop.max_epochs = 4;
    TrainerOptions options;
    options.loop = loop;
    GraphOptions graph;
    graph.fallback = Fallback::kStrict;
    graph.verify_interval = 2;
    seed_all(7);
    const auto trainer = testing::make_trainer(GetParam(), testing::cnn_task().make(), options, graph);
    if (synced) trainer->add_hook(std::make_unique<SyncedHook>());
    const Batch samples = testing::cnn_task().batch(8, 9);
    DataLoader data(std::make_shared<TensorDataset>(samples.items()), std::make_unique<EpochSampler>(8, false, 0),
                    {.batch_size = 4});
    trainer->train(data);
    return std::pair(trainer->weights().tensor("norm.running_mean").to(at::kDouble),
                     trainer->weights().tensor("norm.num_batches_tracked").item<int64_t>());
  };
  const auto [alone, steps] = statistics(false);
  const auto [synced, synced_steps] = statistics(true);
  EXPECT_EQ(steps, 8);
  EXPECT_EQ(synced_steps, 8);
  // Running statistics do not act on training, so what was added fades by 0.9 a step: 1 + 0.81 + 0.81^2 + 0.81^3.
  EXPECT_TRUE(at::allclose(synced - alone, at::full_like(alone, 1 + 0.81 + 0.81 * 0.81 + 0.81 * 0.81 * 0.81), 0, 1e-5))
      << synced - alone;
}

INSTANTIATE_TEST_SUITE_P(Modes, SyncBuffers, ::testing::Values("eager", "graph"));

}  // namespace
}  // namespace duet
