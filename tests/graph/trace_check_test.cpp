#include "graph/guards/trace_check.h"
#include <cmath>
#include <filesystem>
#include <set>
#include <tuple>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "graph/guards/check_schedule.h"
#include "tests/graph/both_modes.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using testing::batch_at;
using testing::expect_same_in_both_modes;
using testing::plain_loss;
using testing::StepLoss;
using testing::StepRun;
using testing::TwoLayers;

GraphOptions with_check(Check check, Fallback fallback = Fallback::kAuto) {
  return {.fallback = fallback, .check = check, .verify_interval = 0};
}

// A loss that doubles from the call `from` on.
StepLoss doubling_from(int64_t from) {
  return [from, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
    return plain_loss(net, batch) * (++calls >= from ? 2.0 : 1.0);
  };
}

// A run without checks whose loss does what the test says.
struct Unchecked {
  explicit Unchecked(const StepLoss& loss, const GraphOptions& graph = with_check(Check::kOff)) {
    seed_all(3);
    trainer = testing::make_trainer("graph", make_task(net, loss), {}, graph);
  }
  void steps(int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) trainer->step(batch_at(n));
  }
  std::shared_ptr<TwoLayers> net = std::make_shared<TwoLayers>();
  std::unique_ptr<BaseTrainer> trainer;
};

TEST(TraceCheck, EveryCheckIsExactForAnyHostCode) {
  for (const int64_t from : {3, 4, 5, 17}) {
    const auto set_up = [from](StepRun& run) {
      run.loss = doubling_from(from);
      run.graph = with_check(Check::kEvery);
    };
    EXPECT_EQ(expect_same_in_both_modes(set_up, 30).error, "");
  }
}

TEST(TraceCheck, StrictNamesWhatDiffersAndStops) {
  Unchecked run(doubling_from(6), with_check(Check::kEvery, Fallback::kStrict));
  run.steps(0, 5);
  expect_error<GraphError>([&] { run.steps(5, 6); }, {"'other' of aten::mul.Scalar is 2., where 1. was recorded"});
}

TEST(TraceCheck, AnExceptionOfTheHostCodeComesOnceAndAsItIs) {
  for (const std::string mode : {"eager", "graph"}) {
    int64_t calls = 0;
    const auto loss = [&calls](TwoLayers& net, const Batch& batch) {
      const at::Tensor value = plain_loss(net, batch);
      if (++calls == 6) throw std::runtime_error("the user's own");
      return value;
    };
    const auto trainer = testing::make_trainer(mode, make_task(std::make_shared<TwoLayers>(), loss));
    for (int64_t n = 0; n < 5; ++n) trainer->step(batch_at(n));
    expect_error<std::runtime_error>([&] { trainer->step(batch_at(5)); }, {"the user's own"});
    EXPECT_EQ(calls, 6) << mode;
    trainer->step(batch_at(6));
    EXPECT_EQ(calls, 7) << mode;
  }
}

// Random numbers that were drawn before it are drawn, as in eager mode; steps 1 and 2 are recorded and compared.
TEST(TraceCheck, AnExceptionAfterADropoutLeavesTheStateOfEager) {
  StateDict states[2];
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    int64_t calls = 0;
    const auto loss = [&calls](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::dropout(net.a(batch["input"]), 0.5, true);
      if (++calls == 2 || calls == 4 || calls % 6 == 0) throw std::runtime_error("a bad batch");
      return torch::nn::functional::cross_entropy(net.b(hidden), batch["target"]);
    };
    const auto trainer = testing::make_trainer(mode, make_task(std::make_shared<TwoLayers>(), loss));
    for (int64_t n = 0; n < 20; ++n) {
      try {
        trainer->step(batch_at(n));
      } catch (const std::runtime_error&) {
      }
    }
    states[mode == "graph"] = trainer->state_dict();
    if (mode == "graph") {
      EXPECT_EQ(dynamic_cast<GraphTrainer&>(*trainer).report()[0].state, "captured");
    }
  }
  testing::expect_same_bits(states[0], states[1]);
}

// Unchecked replays before the difference: nobody knows how they would have gone.
TEST(TraceCheck, ASaveChecksFirst) {
  const TempDir folder;
  int64_t calls = 0;
  bool doubled = false;
  Unchecked run([&](TwoLayers& net, const Batch& batch) {
    ++calls;
    return plain_loss(net, batch) * (doubled ? 2.0 : 1.0);
  });
  run.steps(0, 6);
  EXPECT_EQ(calls, 2);
  run.trainer->save(folder / "early");
  EXPECT_EQ(calls, 3) << "the host code of the unchecked steps runs once more";
  doubled = true;
  run.steps(6, 9);
  // Up to 7: those before the first save did not run their host code.
  expect_error<GraphError>([&] { run.trainer->save(folder / "late"); }, {"aten::mul.Scalar is 2.", "Up to 7 steps"});
  EXPECT_FALSE(std::filesystem::exists(folder / "late/step-9"));
}

// Also where the code catches whatever is thrown.
TEST(TraceCheck, TheEndOfARunChecksWhatWasNot) {
  for (const bool swallows : {false, true}) {
    bool extra = false;
    Unchecked run([&](TwoLayers& net, const Batch& batch) {
      at::Tensor value = plain_loss(net, batch);
      try {
        if (extra) value = value + net.a->weight.square().sum();
      } catch (...) {
        if (!swallows) throw;
      }
      return value;
    });
    run.steps(0, 6);
    extra = true;
    run.steps(6, 7);
    EXPECT_THROW(run.trainer->finish(), GraphError);
  }
}

TEST(TraceCheck, ASaveInEvalModeIsNoError) {
  const TempDir folder;
  Unchecked run([](TwoLayers& own, const Batch& batch) {
    return torch::dropout(plain_loss(own, batch), 0.1, own.is_training());
  });
  run.steps(0, 6);
  run.net->eval();
  run.trainer->save(folder / "eval");
  run.net->train();
  run.trainer->finish();
}

TEST(TraceCheck, AGradientStaysWhereItWasBesideACheckBetweenSteps) {
  Unchecked run(plain_loss);
  run.steps(0, 6);
  const at::Tensor before = run.net->a->weight.grad().clone();
  run.trainer->finish();
  EXPECT_TRUE(testing::same_bits(before, run.net->a->weight.grad()));
}

// Asks `schedule` before each of so many replays, which take 1 beside a check and `alone` otherwise; the replays
// between two checks.
std::vector<int64_t> pauses_between_checks(CheckSchedule& schedule, int64_t replays, double check, double alone) {
  std::vector<int64_t> pauses;
  for (int64_t n = 0, last = 0; n < replays; ++n) {
    if (schedule.due()) {
      pauses.push_back(n - std::exchange(last, n));
      schedule.checked(check, 1);
    } else {
      schedule.replayed(0);
      schedule.note_replay(alone);
    }
  }
  return pauses;
}

CheckSchedule schedule_of(Check check, bool needs_it = false) {
  CheckSchedule schedule(check, /*budget=*/0.03);
  schedule.restart(needs_it);
  return schedule;
}

TEST(CheckSchedule, ChecksAllWhereItIsCheap) {
  CheckSchedule schedule = schedule_of(Check::kBudget);
  EXPECT_EQ(std::ssize(pauses_between_checks(schedule, CheckSchedule::kFirst, 1.02, 1)), CheckSchedule::kFirst);
  // Some without, to see what a replay alone takes.
  while (!schedule.due()) {
    schedule.replayed(0);
    schedule.note_replay(1);
  }
  EXPECT_EQ(std::ssize(pauses_between_checks(schedule, CheckSchedule::kFirst, 1.02, 1)), CheckSchedule::kFirst);
}

// Elsewhere the first ones, and then no more than the budget, at no fixed period: a share of 0.02 of the steps, 4 000
// of them, give or take six standard deviations. What a check takes is more than the time until its replay begins, as
// that one finds cold caches: in the second case a replay takes twice as long after a check.
TEST(CheckSchedule, KeepsToItsBudget) {
  constexpr int64_t kReplays = 200000;
  for (const auto& [check, alone, share] : {std::tuple(2.5, 1.0, 0.03 / 1.5), {1.1, 0.5, 0.03 / (0.6 / 0.5)}}) {
    CheckSchedule schedule = schedule_of(Check::kBudget);
    EXPECT_EQ(std::ssize(pauses_between_checks(schedule, CheckSchedule::kFirst, check, alone)), CheckSchedule::kFirst);
    const std::vector<int64_t> pauses = pauses_between_checks(schedule, kReplays, check, alone);
    const double wanted = share * kReplays;
    EXPECT_NEAR(static_cast<double>(pauses.size()), wanted, 6 * std::sqrt(wanted) + 100);
    EXPECT_GT(std::set<int64_t>(pauses.begin(), pauses.end()).size(), 50U) << "the checks have a period";
  }
}

TEST(CheckSchedule, OffChecksOnlyWhatNeedsIt) {
  EXPECT_FALSE(schedule_of(Check::kOff).due());
  EXPECT_TRUE(schedule_of(Check::kOff, /*needs_it=*/true).due());
}

}  // namespace
}  // namespace duet
