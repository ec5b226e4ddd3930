#include <algorithm>
#include <set>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"

// Validation, test and prediction on their own, in both modes: each is a run, with an end in every exit.

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

DUET_IN_BOTH_MODES(EvaluationRun);

}  // namespace
}  // namespace duet
