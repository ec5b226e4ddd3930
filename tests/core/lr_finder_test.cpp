#include <cmath>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"

// find_lr() in both modes: what it measures, what it suggests, and that it leaves no trace.

namespace duet {
namespace {

using testing::loader;
using testing::make_trainer;
using testing::trainer_for;

struct Suggestion {
  int64_t seed, points, steepest, valley;
};

constexpr Suggestion kSuggestions[] = {
#include "tests/core/lr_suggestions.inc"
};

// As in make_lr_suggestions.py.
LrCurve curve_of(int64_t seed, int64_t points) {
  LrCurve curve;
  for (int64_t i = 0; i < points; ++i) {
    const double n = static_cast<double>(points);
    const double away = (static_cast<double>(i) - 0.1 * static_cast<double>(5 + seed % 4) * n) / n;
    const double noise = static_cast<double>((i * (2 * seed + 1) * 7919 + seed * 104729) % 1009) / 1009;
    curve.lr.push_back(i == 0 ? 1e-8 : curve.lr.back() * 1.25);
    const double base = seed % 2 == 1 ? 4 * away * away : 1 - std::min(std::max(away, 0.0), 0.25);
    curve.loss.push_back(1 + base + 0.02 * static_cast<double>(seed % 5) * noise);
  }
  return curve;
}

TEST(LrSuggestion, IsThatOfLightningAndOfFastai) {
  for (const Suggestion& expected : kSuggestions) {
    const LrCurve curve = curve_of(expected.seed, expected.points);
    const auto at = [&](int64_t index) { return curve.lr[static_cast<std::size_t>(index)]; };
    EXPECT_EQ(steepest_descent(curve.lr, curve.loss), at(expected.steepest)) << expected.seed;
    EXPECT_EQ(valley_of(curve.lr, curve.loss, 100), at(expected.valley)) << expected.seed;
  }
  const LrCurve few = curve_of(1, 12), enough = curve_of(1, 17);
  EXPECT_FALSE(steepest_descent(few.lr, few.loss) || valley_of(few.lr, few.loss, 100));
  EXPECT_TRUE(steepest_descent(enough.lr, enough.loss) && valley_of(enough.lr, enough.loss, 100));
}

class LrFinder : public testing::InBothModes {};

TEST_P(LrFinder, LeavesEverythingAsItWas) {
  for (const int64_t steps_before : {0, 7}) {  // of five in an epoch
    const LoopOptions loop{.max_epochs = 3, .accumulate = 1};
    std::vector<StateDict> ends;
    for (const bool finds : {false, true}) {
      const auto trainer = trainer_for(mode(), loop, "AdamW", "", {Linear{.end = 9}});
      const auto data = loader(10);
      if (steps_before > 0) {
        const auto first = trainer_for(mode(), {.max_steps = steps_before}, "AdamW", "", {Linear{.end = 9}});
        first->train(*loader(10));
        trainer->load_state_dict(copy_of(first->state_dict()));
      }
      const StateDict before = copy_of(trainer->state_dict()), position = copy_of(data->state_dict());
      if (finds) {
        testing::Names calls;
        trainer->add_hook(testing::recorder(calls));
        EXPECT_EQ(trainer->find_lr(*data, {.max_lr = 0.1, .num_training = 20}).lr.size(), 20U);
        EXPECT_EQ(calls, testing::Names{});
        EXPECT_EQ(trainer->mode(), parse_mode(mode()));
      }
      expect_same_state(trainer->state_dict(), before);
      expect_same_state(data->state_dict(), position);
      trainer->train(*data);
      ends.push_back(copy_of(trainer->state_dict()));
    }
    expect_same_state(ends[0], ends[1]);
  }
}

// Between trainings of one trainer, where a schedule is in force and something is captured.
TEST_P(LrFinder, LeavesATrainerThatHasTrainedAsItWas) {
  std::vector<StateDict> ends;
  for (const bool finds : {false, true}) {
    const auto trainer = trainer_for(mode(), {.max_steps = 40}, "SGD", "", {Linear{.end = 30}});
    for (uint64_t n = 0; n < 12; ++n) trainer->step(testing::mlp_batch(n));
    if (finds)
      trainer->find_lr(*loader(10), {.num_training = 15});
    else
      trainer->finish();
    EXPECT_EQ(trainer->progress().step, 12);
    for (uint64_t n = 12; n < 24; ++n) trainer->step(testing::mlp_batch(n));
    ends.push_back(copy_of(trainer->state_dict()));
  }
  expect_same_state(ends[0], ends[1]);
}

TrainerOptions two_groups(double lr) {
  TrainerOptions options{.optimizer = SGD{.lr = lr}};
  options.param_groups = [](Task& task, const OptimizerOptions& optimizer) {
    ParamGroups groups = {{.name = "all"}, {.name = "bias", .numbers = {{"lr", 10 * optimizer.as<SGD>().lr}}}};
    for (const auto& parameter : task.named_parameters())
      groups[parameter.first.ends_with("bias") ? 1 : 0].parameters.push_back(parameter);
    return groups;
  };
  return options;
}

TEST_P(LrFinder, MeasuresTheSmoothedLossOfAPlainLoop) {
  const LrFinderOptions options{.min_lr = 1e-4, .max_lr = 1e-1, .num_training = 12, .early_stop_threshold = 0};
  seed_all(5);
  const auto found = make_trainer(mode(), testing::mlp_task().make(), two_groups(0.3));
  const LrCurve curve = found->find_lr(*loader(10), options);

  seed_all(5);
  const auto plain = make_trainer("eager", testing::mlp_task().make(), two_groups(0.3));
  const auto data = loader(10);
  double mean = 0;
  for (int64_t i = 0, epoch = 0; i < 12; ++i) {
    if (i % 5 == 0) data->start_epoch(epoch++);
    const double lr = 1e-4 * std::pow(1000, static_cast<double>(i) / 11);
    plain->hyper_parameters().set(0, "lr", lr);
    plain->hyper_parameters().set(1, "lr", 10 * lr);
    mean = 0.98 * mean + 0.02 * plain->step(*data->next()).loss.item<double>();
    EXPECT_NEAR(curve.lr.at(static_cast<std::size_t>(i)), lr, 1e-12);
    EXPECT_NEAR(curve.loss.at(static_cast<std::size_t>(i)), mean / (1 - std::pow(0.98, i + 1)), 1e-6) << i;
  }
}

TEST_P(LrFinder, EndsWhereTheLossRunsAway) {
  for (const NonFinite non_finite : {NonFinite::kApply, NonFinite::kRaise}) {
    TrainerOptions options{.optimizer = SGD{.lr = 0.1}, .non_finite = non_finite};
    const auto trainer = make_trainer(mode(), testing::mlp_task().make(), options);
    const StateDict before = copy_of(trainer->state_dict());
    for (const double threshold : {4.0, 0.0}) {
      const LrCurve curve = trainer->find_lr(*loader(10), {.max_lr = 1e20, .early_stop_threshold = threshold});
      EXPECT_GT(curve.lr.size(), 20U);
      EXPECT_LT(curve.lr.size(), 100U);
      for (const double loss : curve.loss) EXPECT_TRUE(std::isfinite(loss));
      expect_same_state(trainer->state_dict(), before);
    }
  }
}

// Gives some batches in an epoch; after them, if there are any, it fails.
class Breaks : public DataSource {
 public:
  explicit Breaks(int64_t batches) : batches_(batches) {}
  void start_epoch(int64_t) override { given_ = 0; }
  int64_t batches_per_epoch() const override { return 0; }
  std::optional<Batch> next() override {
    if (given_ < batches_) return testing::mlp_batch(static_cast<uint64_t>(given_++));
    require<DataError>(batches_ == 0, "planted");
    return std::nullopt;
  }

 private:
  int64_t batches_, given_ = 0;
};

TEST_P(LrFinder, AnErrorLeavesNoTraceEither) {
  const auto trainer = trainer_for(mode(), {});
  const StateDict before = copy_of(trainer->state_dict());
  expect_error<ConfigError>([&] { trainer->find_lr(*loader(10), {.min_lr = 1, .max_lr = 0.1}); },
                            {"min_lr 1, max_lr 0.1", "expected 0 < min_lr"});
  Breaks breaks(4), empty(0);
  expect_error<DataError>([&] { trainer->find_lr(breaks); }, {"planted"});
  expect_error<DataError>([&] { trainer->find_lr(empty); }, {"no batch to learn from"});
  expect_same_state(trainer->state_dict(), before);
}

DUET_IN_BOTH_MODES(LrFinder);

}  // namespace
}  // namespace duet
