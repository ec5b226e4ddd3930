#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"

// LoopOptions::num_sanity_val_steps: a validation that is tried before the first step, in both modes.

namespace duet {
namespace {

using testing::loader;
using testing::Names;
using testing::trainer_for;

// Counts its batches and evaluations; throws in compute() if it is to.
class CountingMetric : public Metric {
 public:
  CountingMetric(std::vector<int64_t>& batches, bool fails) : batches_(batches), fails_(fails) {}
  std::vector<std::string> names() const override { return {"batches"}; }
  void reset() override { batches_.push_back(0); }
  void add(const Batch&, const NamedTensors&, double) override { ++batches_.back(); }
  MetricValues compute() const override {
    if (fails_) throw DataError("planted");
    return {{"batches", static_cast<double>(batches_.back())}};
  }

 private:
  std::vector<int64_t>& batches_;
  bool fails_;
};

class SanityVal : public testing::InBothModes {
 protected:
  struct Outcome {
    Names calls;
    StateDict state;
    std::vector<int64_t> batches;  // of each evaluation
  };
  Outcome train(int64_t num_sanity_val_steps) const {
    Outcome outcome;
    const auto trainer = trainer_for(mode(), {.max_epochs = 2, .num_sanity_val_steps = num_sanity_val_steps});
    trainer->add_hook(testing::recorder(outcome.calls));
    trainer->add_metric(std::make_unique<CountingMetric>(outcome.batches, false));
    trainer->train(*loader(6), *loader(10, 4, false));
    outcome.state = copy_of(trainer->state_dict());
    return outcome;
  }
};

TEST_P(SanityVal, ComesFirstAndLeavesNoTrace) {
  const Outcome plain = train(0), two = train(2), all = train(-1);
  EXPECT_EQ(plain.batches, (std::vector<int64_t>{5, 5}));
  EXPECT_EQ(two.batches, (std::vector<int64_t>{2, 5, 5}));
  EXPECT_EQ(all.batches, (std::vector<int64_t>{5, 5, 5}));
  for (const Outcome& other : {two, all}) {
    EXPECT_EQ(other.calls, plain.calls);
    expect_same_state(other.state, plain.state);
  }
}

TEST_P(SanityVal, ShowsAMistakeBeforeTheFirstStep) {
  std::vector<int64_t> batches;
  const auto trainer = trainer_for(mode(), {.max_epochs = 2, .num_sanity_val_steps = 1});
  trainer->add_metric(std::make_unique<CountingMetric>(batches, true));
  expect_error<DataError>([&] { trainer->train(*loader(6), *loader(10)); }, {"planted"});
  EXPECT_EQ(trainer->progress().step, 0);
  EXPECT_EQ(batches, std::vector<int64_t>{1});
}

TEST_P(SanityVal, IsNoPartOfAResume) {
  const auto first = trainer_for(mode(), {.max_epochs = 1});
  first->train(*loader(6), *loader(10));
  std::vector<int64_t> batches;
  const auto resumed = trainer_for(mode(), {.max_epochs = 2, .num_sanity_val_steps = 2});
  resumed->add_metric(std::make_unique<CountingMetric>(batches, false));
  resumed->load_state_dict(copy_of(first->state_dict()));
  resumed->train(*loader(6), *loader(10));
  EXPECT_EQ(batches, std::vector<int64_t>{5});
}

DUET_IN_BOTH_MODES(SanityVal);

}  // namespace
}  // namespace duet
