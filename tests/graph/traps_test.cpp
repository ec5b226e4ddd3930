#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/graph/trap.h"

namespace duet {
namespace {

using testing::batch_at;
using testing::Trap;
using testing::TrapRun;
using testing::Traps;

std::vector<Trap> all_traps() {
  Traps add;
  add_counter_cases(add);
  add_module_cases(add);
  add_aliasing_cases(add);
  add_setting_cases(add);
  add_kept_cases(add);
  add_read_cases(add);
  add_crash_cases(add);
  return add.traps;
}

struct TrapOutcome {
  StateDict state;
  std::vector<at::Tensor> seen;
  std::vector<double> losses;
  std::vector<SignatureReport> report;
  std::string error;
};

TrapOutcome run_trap(const Trap& trap, const std::string& mode) {
  seed_all(5);
  TrapRun run = trap.make();
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
  const auto trainer = testing::make_trainer(mode, make_task(run.net, run.loss), options);
  TrapOutcome outcome;
  try {
    for (int64_t n = 0; n < trap.steps; ++n) {
      if (run.between) run.between(*trainer, n);
      Batch batch = run.batch ? run.batch(n) : batch_at(n % 97);
      if (run.with_ids) batch.set("id", at::full({8}, n, at::kLong));
      outcome.losses.push_back(trainer->step(batch).loss.item<double>());
    }
    trainer->finish();
  } catch (const GraphError& error) {
    outcome.error = error.what();
  }
  const StateDict state = trainer->state_dict();
  for (const auto& [name, tensor] : state.tensors()) outcome.state.set(name, tensor.clone());
  if (run.seen) outcome.seen = run.seen();
  if (auto* graph = dynamic_cast<GraphTrainer*>(trainer.get())) outcome.report = graph->report();
  return outcome;
}

class HostCodeTraps : public ::testing::TestWithParam<Trap> {};

TEST_P(HostCodeTraps, GiveTheBitsOfEagerOrAnErrorThatNamesTheCause) {
  const TrapOutcome eager = run_trap(GetParam(), "eager");
  ASSERT_EQ(eager.error, "");
  const TrapOutcome graph = run_trap(GetParam(), "graph");
  std::string reasons = graph.error;
  for (const SignatureReport& report : graph.report) {
    reasons += report.reason;
    std::cout << "  " << report.signature << ": " << report.state << ", " << report.replays << " replays, "
              << report.checked << " checked, " << report.differing << " differing, " << report.eager_steps
              << " eager; " << report.reason << "\n";
  }
  EXPECT_THAT(reasons, ::testing::HasSubstr(GetParam().reason));
  if (GetParam().stays_captured) {
    EXPECT_EQ(reasons, "");
    EXPECT_EQ(graph.report.back().state, "captured");
  }
  if (!graph.error.empty()) return;
  EXPECT_EQ(eager.losses, graph.losses);
  testing::expect_same_bits(eager.state, graph.state);
  ASSERT_EQ(eager.seen.size(), graph.seen.size());
  for (std::size_t i = 0; i < eager.seen.size(); ++i) {
    EXPECT_TRUE(testing::same_bits(eager.seen[i], graph.seen[i])) << "what the user saw, number " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, HostCodeTraps, ::testing::ValuesIn(all_traps()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace duet
