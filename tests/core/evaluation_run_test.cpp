#include <algorithm>
#include <set>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "base/error.h"
#include "metrics/metric.h"
#include "tests/support/expect_error.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/sample_state.h"

// Validation, test and prediction in both modes: on their own, of several datasets, before the first step.

namespace duet {
namespace {

using testing::EveryPointHook;
using testing::loader;
using testing::Names;
using testing::recorder;
using testing::trainer_for;

struct Alone {
  std::string points, kind;
  std::function<void(BaseTrainer&, DataSource&)> run;
};

const std::vector<Alone>& each_alone() {
  static const std::vector<Alone> kAll = {
      {"val", "validation", [](BaseTrainer& trainer, DataSource& data) { trainer.validate(data); }},
      {"test", "test", [](BaseTrainer& trainer, DataSource& data) { trainer.test(data); }},
      {"predict", "prediction", [](BaseTrainer& trainer, DataSource& data) { trainer.predict(data); }}};
  return kAll;
}

Names points_of(const std::string& what) {
  return {"before_run",
          "before_" + what,
          "before_" + what + "_epoch",
          "before_" + what + "_iter",
          "after_" + what + "_iter",
          "after_" + what + "_epoch",
          "after_" + what,
          "after_run"};
}

class EvaluationRun : public testing::InBothModes {};

TEST_P(EvaluationRun, IsARunOfItsOwn) {
  const auto trainer = trainer_for(mode(), {.max_steps = 2});
  Names calls;
  std::set<std::string> kinds;
  trainer->add_hook(std::make_unique<EveryPointHook>("look", [&](const std::string& point, TrainContext& run) {
    calls.push_back(point);
    kinds.insert(to_string(run.control.kind));
  }));
  trainer->train(*loader(4));
  EXPECT_EQ(kinds, std::set<std::string>{"training"});
  for (const Alone& alone : each_alone()) {
    SCOPED_TRACE(alone.kind);
    calls.clear();
    kinds.clear();
    alone.run(*trainer, *loader(2));
    EXPECT_EQ(calls, points_of(alone.points));
    EXPECT_EQ(kinds, std::set<std::string>{alone.kind});
    EXPECT_EQ(trainer->outcome(), RunOutcome::kFinished);
    EXPECT_EQ(trainer->progress().step, 2);
  }
}

TEST_P(EvaluationRun, EndsInEveryExitAndTellsOfTheError) {
  for (const Alone& alone : each_alone()) {
    for (const std::string& bad : points_of(alone.points)) {
      SCOPED_TRACE(bad);
      const auto trainer = trainer_for(mode(), {});
      Names first, last;
      std::string error;
      trainer->add_hook(recorder(first, "first"));
      trainer->add_hook(std::make_unique<EveryPointHook>("bad", [&](const std::string& point, TrainContext& run) {
        if (point == "on_exception") error = run.control.error;
        if (point == bad) throw DataError("boom");
      }));
      trainer->add_hook(recorder(last, "last"));
      expect_error<DataError>([&] { alone.run(*trainer, *loader(2)); }, {"boom", "'bad'", bad});
      const bool ends = bad == "after_" + alone.points || bad == "after_run";
      // What comes last reaches every hook; validations are in runs of training too, where this one is for all or none.
      for (const Names* calls : {&first, &last}) {
        const auto count = [&](const std::string& point) { return std::count(calls->begin(), calls->end(), point); };
        EXPECT_EQ(count("on_exception"), ends ? 0 : 1);
        if (alone.points != "val" || calls == &first) {
          EXPECT_EQ(count("after_" + alone.points), 1);
        }
        EXPECT_EQ(count("after_run"), 1);
        EXPECT_EQ(calls->back(), "after_run");
      }
      EXPECT_EQ(error.find("boom") != std::string::npos, !ends);
    }
  }
}

TEST_P(EvaluationRun, IsPartOfTheRunAroundIt) {
  const auto trainer = trainer_for(mode(), {.max_steps = 1});
  Names calls;
  trainer->add_hook(recorder(calls));
  const auto data = loader(2);
  trainer->on(HookPoint::kAfterTrain, [&](TrainContext&) { trainer->test(*data); });
  trainer->train(*loader(2));
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "before_run"), 1);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "after_test"), 1);
  EXPECT_EQ(calls.back(), "after_run");

  calls.clear();
  trainer->step(testing::mlp_batch(1));  // a loop of one's own
  trainer->validate(*data);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "before_run"), 1);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "after_run"), 0);
  trainer->finish();
  EXPECT_EQ(calls.back(), "after_run");
}

// Also within an epoch, by the trainer or by a hook.
TEST_P(EvaluationRun, LeavesTheEpochWhereItStood) {
  const auto data = loader(12), same = loader(12);
  const auto trainer = trainer_for(mode(), {.max_epochs = 3, .val_interval = 2});
  trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& run) {
    if (run.progress.step % 3 == 0) trainer->predict(*data, [](const Batch&, const NamedTensors&) {});
  });
  trainer->train(*data, *data);
  const auto other = trainer_for(mode(), {.max_epochs = 3});
  other->train(*same);
  EXPECT_EQ(trainer->progress().step, 3 * data->batches_per_epoch());
  for (const auto& [name, tensor] : other->weights().tensors())
    EXPECT_TRUE(same_bits(tensor, trainer->weights().tensor(name)));
}

DUET_IN_BOTH_MODES(EvaluationRun);

class NamedSourcesTest : public testing::InBothModes {
 protected:
  // 3 batches and 2.
  std::unique_ptr<DataLoader> clean = loader(6, 1, false), noisy = loader(4, 2, true);
  NamedSources both() { return {{"clean", *clean}, {"noisy", *noisy}}; }
  std::unique_ptr<BaseTrainer> trainer(const LoopOptions& loop) { return trainer_for(GetParam(), loop); }
};

TEST_P(NamedSourcesTest, GiveTheResultsOfEachUnderItsName) {
  const auto trained = trainer({.max_steps = 3});
  trained->add_metric(std::make_unique<MeanLoss>(), "own");
  trained->train(*loader(6));
  const MetricValues first = trained->validate(*clean), second = trained->validate(*noisy);
  MetricValues expected;
  for (const auto& [name, value] : first) expected["clean/" + name] = value;
  for (const auto& [name, value] : second) expected["noisy/" + name] = value;
  EXPECT_EQ(expected.size(), 4U);  // loss and own/loss of each
  EXPECT_EQ(trained->validate(both()), expected);
  EXPECT_EQ(trained->test(both()), expected);
  EXPECT_EQ(trained->validate({{"noisy", *noisy}}).size(), 2U);  // also alone
}

TEST_P(NamedSourcesTest, AreOneValidation) {
  const auto trained = trainer({.max_steps = 2, .val_interval = 2});
  Names calls;
  trained->add_hook(std::make_unique<EveryPointHook>("look", [&](const std::string& point, TrainContext& run) {
    if (point.find("val") == std::string::npos) return;
    const bool in_batch = point.ends_with("_iter");
    calls.push_back(point + (in_batch ? c10::str(" ", run.evaluation.dataset, run.evaluation.batch_index) : ""));
    EXPECT_EQ(run.evaluation.metrics.size(), point.starts_with("after_val") && !in_batch ? 2U : 0U) << point;
  }));
  trained->train(*loader(4), both());
  Names expected = {"before_val", "before_val_epoch"};
  for (const char* place : {"clean0", "clean1", "clean2", "noisy0", "noisy1"}) {
    for (const char* point : {"before_val_iter ", "after_val_iter "}) expected.push_back(std::string(point) + place);
  }
  expected.insert(expected.end(), {"after_val_epoch", "after_val"});
  EXPECT_EQ(calls, expected);
}

TEST_P(NamedSourcesTest, AnInterruptionLeavesTheRestOutAndGivesNoResults) {
  const auto trained = trainer({.max_steps = 2, .val_interval = 1});
  Names seen;
  trained->on(HookPoint::kAfterValIter, [&](TrainContext& run) {
    seen.push_back(run.evaluation.dataset);
    run.control.interrupt("enough");
  });
  bool has_results = false;
  trained->on(HookPoint::kAfterValEpoch, [&](TrainContext&) { has_results = true; });
  trained->train(*loader(4), both());
  EXPECT_EQ(seen, Names{"clean"});
  EXPECT_FALSE(has_results);
  EXPECT_EQ(trained->outcome(), RunOutcome::kInterrupted);
}

// The run that goes on from there validates again.
TEST_P(NamedSourcesTest, AnInterruptionLeavesRandomNumbersAsTheyWere) {
  const auto trained = trainer({.max_steps = 2, .val_interval = 1});
  at::Tensor before;
  trained->on(HookPoint::kBeforeValEpoch,
              [&](TrainContext&) { before = at::detail::getDefaultCPUGenerator().get_state(); });
  trained->on(HookPoint::kAfterValIter, [&](TrainContext& run) {
    at::rand({3});
    run.control.interrupt("enough");
  });
  trained->train(*loader(4), both());
  EXPECT_TRUE(same_bits(before, at::detail::getDefaultCPUGenerator().get_state()));
}

TEST_P(NamedSourcesTest, NeedNamesThatDiffer) {
  const auto trained = trainer({.max_steps = 1});
  const auto refused = [&](const NamedSources& data, const std::vector<std::string>& parts) {
    expect_error<ConfigError>([&] { trained->validate(data); }, parts);
    expect_error<ConfigError>([&] { trained->test(data); }, parts);
    expect_error<ConfigError>([&] { trained->train(*loader(2), data); }, parts);
  };
  refused({}, {"no dataset", "name one"});
  refused({{"", *clean}, {"noisy", *noisy}}, {"called ''", "rename"});
  refused({{"a/b", *clean}}, {"'a/b'", "letters, digits"});
  refused({{"same", *clean}, {"same", *noisy}}, {"two datasets", "'same'"});
}

DUET_IN_BOTH_MODES(NamedSourcesTest);

// A validation that is tried before the first step: LoopOptions::num_sanity_val_steps.

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
  Outcome train(int64_t num_sanity_val_steps, int64_t limit_val_batches = 0) const {
    Outcome outcome;
    const auto trainer = trainer_for(
        mode(),
        {.max_epochs = 2, .num_sanity_val_steps = num_sanity_val_steps, .limit_val_batches = limit_val_batches});
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
  for (const int64_t steps : {3, -1}) EXPECT_EQ(train(steps, 2).batches, (std::vector<int64_t>{2, 2, 2}));
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
