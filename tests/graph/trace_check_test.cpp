#include "graph/guards/trace_check.h"
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/error.h"
#include "graph/guards/check_schedule.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

namespace duet {
namespace {

using testing::batch_at;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::plain_loss;
using testing::TwoLayers;

// A loss that doubles from the call `from` on.
auto doubling_from(int64_t from) {
  return [from, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
    return plain_loss(net, batch) * (++calls >= from ? 2.0 : 1.0);
  };
}

std::unique_ptr<BaseTrainer> trainer_of(const std::string& mode, int64_t from, const GraphOptions& graph = {}) {
  seed_all(3);
  return testing::make_trainer(mode, make_task(std::make_shared<TwoLayers>(), doubling_from(from)), {}, graph);
}

GraphOptions with_check(Check check, double budget = 0.03) {
  GraphOptions options;
  options.check = check;
  options.check_budget = budget;
  options.verify_interval = 0;
  return options;
}

TEST(TraceCheck, EveryCheckIsExactForAnyHostCode) {
  for (const int64_t from : {3, 4, 5, 17}) {
    const auto eager = trainer_of("eager", from);
    const auto graph = trainer_of("graph", from, with_check(Check::kEvery));
    for (int64_t n = 0; n < 30; ++n) {
      const double loss = eager->step(batch_at(n)).loss.item<double>();
      EXPECT_EQ(loss, graph->step(batch_at(n)).loss.item<double>()) << "step " << n;
    }
    expect_same_bits(eager->state_dict(), graph->state_dict());
  }
}

TEST(TraceCheck, StrictNamesWhatDiffersAndStops) {
  GraphOptions strict = with_check(Check::kEvery);
  strict.fallback = Fallback::kStrict;
  const auto trainer = trainer_of("graph", 6, strict);
  for (int64_t n = 0; n < 5; ++n) trainer->step(batch_at(n));
  try {
    trainer->step(batch_at(5));
    FAIL() << "expected a GraphError";
  } catch (const GraphError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'other' of aten::mul.Scalar is 2., where 1. was recorded"));
  }
}

TEST(TraceCheck, AnExceptionOfTheHostCodeComesOnceAndAsItIs) {
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    int64_t calls = 0;
    const auto loss = [&calls](TwoLayers& net, const Batch& batch) {
      const at::Tensor value = plain_loss(net, batch);
      if (++calls == 6) throw std::runtime_error("the user's own");
      return value;
    };
    const auto trainer = testing::make_trainer(mode, make_task(std::make_shared<TwoLayers>(), loss));
    for (int64_t n = 0; n < 5; ++n) trainer->step(batch_at(n));
    try {
      trainer->step(batch_at(5));
      FAIL() << "expected the exception, in mode " << mode;
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the user's own"));
    }
    EXPECT_EQ(calls, 6) << mode;
    trainer->step(batch_at(6));
    EXPECT_EQ(calls, 7) << mode;
  }
}

// Unchecked replays before the difference: nobody knows how they would have gone.
TEST(TraceCheck, ASaveChecksFirst) {
  const std::string folder = ::testing::TempDir() + "duet_unchecked";
  std::filesystem::remove_all(folder);
  int64_t calls = 0;
  bool doubled = false;
  const auto loss = [&](TwoLayers& net, const Batch& batch) {
    ++calls;
    return plain_loss(net, batch) * (doubled ? 2.0 : 1.0);
  };
  seed_all(3);
  const auto trainer =
      testing::make_trainer("graph", make_task(std::make_shared<TwoLayers>(), loss), {}, with_check(Check::kOff));
  for (int64_t n = 0; n < 6; ++n) trainer->step(batch_at(n));
  EXPECT_EQ(calls, 2);
  trainer->save(folder);
  EXPECT_EQ(calls, 3) << "the host code of the unchecked steps runs once more";
  doubled = true;
  for (int64_t n = 6; n < 9; ++n) trainer->step(batch_at(n));
  try {
    trainer->save(folder + "/late");
    FAIL() << "expected a GraphError";
  } catch (const GraphError& error) {
    EXPECT_THAT(error.what(), HasSubstr("aten::mul.Scalar is 2."));
    EXPECT_THAT(error.what(), HasSubstr("Up to 7 steps")) << "those before the first save did not run their host code";
  }
  EXPECT_FALSE(std::filesystem::exists(folder + "/late/step-9"));
}

TEST(TraceCheck, ASwallowedDifferenceCounts) {
  bool extra = false;
  const auto loss = [&](TwoLayers& net, const Batch& batch) {
    at::Tensor value = plain_loss(net, batch);
    try {
      if (extra) value = value + net.a->weight.square().sum();
    } catch (...) {
    }
    return value;
  };
  const auto trainer =
      testing::make_trainer("graph", make_task(std::make_shared<TwoLayers>(), loss), {}, with_check(Check::kOff));
  for (int64_t n = 0; n < 6; ++n) trainer->step(batch_at(n));
  extra = true;
  trainer->step(batch_at(6));
  EXPECT_THROW(trainer->finish(), GraphError);
}

// Random numbers that were drawn before it are drawn, as in eager mode.
TEST(TraceCheck, AnExceptionAfterADropoutLeavesTheStateOfEager) {
  StateDict states[2];
  for (const std::string mode : {"eager", "graph"}) {
    seed_all(3);
    int64_t calls = 0;
    const auto loss = [&calls](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::dropout(net.a(batch["input"]), 0.5, true);
      if (++calls % 6 == 0) throw std::runtime_error("a bad batch");
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
  }
  expect_same_bits(states[0], states[1]);
}

TEST(TraceCheck, ASaveInEvalModeIsNoError) {
  auto net = std::make_shared<TwoLayers>();
  const auto loss = [](TwoLayers& own, const Batch& batch) {
    return torch::dropout(plain_loss(own, batch), 0.1, own.is_training());
  };
  const auto trainer = testing::make_trainer("graph", make_task(net, loss), {}, with_check(Check::kOff));
  for (int64_t n = 0; n < 6; ++n) trainer->step(batch_at(n));
  net->eval();
  trainer->save(::testing::TempDir() + "duet_eval");
  net->train();
  trainer->finish();
}

TEST(TraceCheck, TheEndOfARunChecksWhatWasNot) {
  bool doubled = false;
  const auto loss = [&](TwoLayers& net, const Batch& batch) { return plain_loss(net, batch) * (doubled ? 2.0 : 1.0); };
  const auto trainer =
      testing::make_trainer("graph", make_task(std::make_shared<TwoLayers>(), loss), {}, with_check(Check::kOff));
  for (int64_t n = 0; n < 6; ++n) trainer->step(batch_at(n));
  doubled = true;
  trainer->step(batch_at(6));
  EXPECT_THROW(trainer->finish(), GraphError);
}

TEST(TraceCheck, AGradientStaysWhereItWasBesideACheckBetweenSteps) {
  auto net = std::make_shared<TwoLayers>();
  const auto trainer = testing::make_trainer("graph", make_task(net, plain_loss), {}, with_check(Check::kOff));
  for (int64_t n = 0; n < 6; ++n) trainer->step(batch_at(n));
  const at::Tensor before = net->a->weight.grad().clone();
  trainer->finish();
  EXPECT_TRUE(testing::same_bits(before, net->a->weight.grad()));
}

TEST(CheckSchedule, ChecksAllWhereItIsCheap) {
  CheckSchedule schedule(Check::kBudget, 0.03);
  schedule.restart(false);
  for (int64_t n = 0; n < CheckSchedule::kFirst; ++n) {
    ASSERT_TRUE(schedule.due()) << n;
    schedule.checked(1.02, 1);
  }
  // Some without, to see what a replay alone takes.
  while (!schedule.due()) {
    schedule.replayed(0);
    schedule.note_replay(1);
  }
  for (int64_t n = 0; n < CheckSchedule::kFirst; ++n) {
    ASSERT_TRUE(schedule.due()) << n;
    schedule.checked(1.02, 1);
  }
}

// Elsewhere the first ones, and then no more than the budget, at no fixed period.
TEST(CheckSchedule, KeepsToItsBudget) {
  CheckSchedule schedule(Check::kBudget, 0.03);
  schedule.restart(false);
  for (int64_t n = 0; n < CheckSchedule::kFirst; ++n) {
    ASSERT_TRUE(schedule.due()) << n;
    schedule.checked(2.5, 1);
  }
  constexpr int64_t kReplays = 200000;
  std::map<int64_t, int64_t> pauses;
  int64_t checks = 0;
  for (int64_t n = 0, last = 0; n < kReplays; ++n) {
    if (schedule.due()) {
      ++checks;
      ++pauses[n - std::exchange(last, n)];
      schedule.checked(2.5, 1);
    } else {
      schedule.replayed(0);
      schedule.note_replay(1);
    }
  }
  // A share of 0.02 of the steps: 4 000 of them, give or take six standard deviations.
  EXPECT_NEAR(static_cast<double>(checks), 0.03 / 1.5 * kReplays, 6 * std::sqrt(4000.0) + 100);
  EXPECT_GT(pauses.size(), 50U) << "the checks have a period";
}

// What a check takes is more than the time until its replay begins: that one finds cold caches.
TEST(CheckSchedule, CountsWhatAReplayTakesLongerAfterACheck) {
  CheckSchedule schedule(Check::kBudget, 0.03);
  schedule.restart(false);
  for (int64_t n = 0; n < CheckSchedule::kFirst; ++n) schedule.checked(1.1, 1);
  int64_t checks = 0;
  constexpr int64_t kReplays = 200000;
  for (int64_t n = 0; n < kReplays; ++n) {
    if (schedule.due()) {
      ++checks;
      schedule.checked(1.1, 1);
    } else {
      schedule.replayed(0);
      schedule.note_replay(0.5);
    }
  }
  EXPECT_NEAR(static_cast<double>(checks), 0.03 / (0.6 / 0.5) * kReplays, 6 * std::sqrt(5000.0) + 100);
}

TEST(CheckSchedule, OffChecksOnlyWhatNeedsIt) {
  CheckSchedule schedule(Check::kOff, 0.03);
  schedule.restart(false);
  EXPECT_FALSE(schedule.due());
  schedule.restart(true);
  EXPECT_TRUE(schedule.due());
}

}  // namespace
}  // namespace duet
