#include <gtest/gtest.h>
#include "base/device.h"
#include "eager/eager_trainer.h"
#include "graph/graph_trainer.h"
#include "tests/support/toy_tasks.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using testing::expect_same_bits;
using testing::ToyTask;

struct Setting {
  std::string name;
  OptimizerOptions optimizer;
  int64_t accumulate = 1;
  bool clip = false, bf16 = false;
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"AdamW", AdamW{.lr = 1e-2}},
      {"SgdMomentum", SGD{.lr = 1e-1, .weight_decay = 1e-3, .momentum = 0.9, .nesterov = true}, 1, true},
      {"Accumulate3", AdamW{.lr = 1e-2}, 3, true},
      {"Bf16Accumulate3", AdamW{.lr = 1e-2}, 3, true, true},
  };
  return all;
}

// Micro-batches of step `n`: every sixth step is short, as at the end of an epoch.
std::vector<Batch> window_of(const ToyTask& task, int64_t accumulate, int64_t n) {
  const bool tail = n % 6 == 5;
  std::vector<Batch> micro_batches;
  for (int64_t i = 0; i < (tail && accumulate > 1 ? accumulate - 1 : accumulate); ++i) {
    micro_batches.push_back(task.batch(tail && i == 0 ? 3 : 8, static_cast<uint64_t>(100 * n + i)));
  }
  return micro_batches;
}

// Losses of every step, under a learning rate that moves.
std::vector<double> run(BaseTrainer& trainer, const ToyTask& task, int64_t accumulate, int64_t steps) {
  std::vector<double> losses;
  for (int64_t n = 0; n < steps; ++n) {
    trainer.hyper_parameters().set(0, "lr", 1e-2 / (1 + 0.1 * static_cast<double>(n)));
    losses.push_back(trainer.step(window_of(task, accumulate, n)).loss.item<double>());
  }
  return losses;
}

class Parity : public ::testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {};

TEST_P(Parity, GraphGivesTheBitsOfEager) {
  const ToyTask& task = testing::all_toy_tasks()[std::get<0>(GetParam())];
  const Setting& setting = settings()[std::get<1>(GetParam())];
  if (setting.bf16 && !testing::runs_in_bfloat16(task)) GTEST_SKIP() << "LibTorch cannot run it on this CPU";
  TrainerOptions options;
  options.device = "cpu";
  options.optimizer = setting.optimizer;
  if (setting.clip) options.clip_grad = ClipNorm{0.5, 2.0};
  if (setting.bf16) options.amp = at::kBFloat16;
  GraphOptions graph;
  graph.fallback = Fallback::kStrict;
  graph.fuse_after = 2;

  seed_all(7);
  EagerTrainer eager(task.make(), options);
  const auto eager_losses = run(eager, task, setting.accumulate, 25);
  const StateDict eager_state = eager.state_dict();

  seed_all(7);
  GraphTrainer captured(task.make(), options, graph);
  const auto graph_losses = run(captured, task, setting.accumulate, 25);

  EXPECT_EQ(eager_losses, graph_losses);
  expect_same_bits(eager_state, captured.state_dict());
  EXPECT_GE(captured.replays(), 14) << captured.program_text();
  for (const SignatureReport& report : captured.report()) EXPECT_NE(report.state, "eager") << report.reason;
}

INSTANTIATE_TEST_SUITE_P(Models, Parity,
                         ::testing::Combine(::testing::Range<std::size_t>(0, 5),
                                            ::testing::Range<std::size_t>(0, settings().size())),
                         [](const auto& info) {
                           return testing::all_toy_tasks()[std::get<0>(info.param)].name +
                                  settings()[std::get<1>(info.param)].name;
                         });

}  // namespace
}  // namespace duet
