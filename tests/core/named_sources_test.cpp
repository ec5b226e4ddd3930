#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/early_stopping_hook.h"
#include "hooks/logger_hook.h"
#include "metrics/metric.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/temp_dir.h"

// Several named datasets in one validation, in both modes.

namespace duet {
namespace {

using testing::EveryPointHook;
using testing::loader;
using testing::Names;
using testing::trainer_for;

class NamedSourcesTest : public testing::InBothModes {
 protected:
  // 3 batches and 2.
  std::unique_ptr<DataLoader> clean = loader(6, 1, false), noisy = loader(4, 2, true);
  NamedSources both() { return {{"clean", *clean}, {"noisy", *noisy}}; }
  std::unique_ptr<BaseTrainer> trainer(const LoopOptions& loop, const std::string& work_dir = "") {
    return trainer_for(GetParam(), loop, "AdamW", work_dir);
  }
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

TEST_P(NamedSourcesTest, MayBeMonitored) {
  const TempDir folder;
  const auto trained = trainer({.max_steps = 6, .val_interval = 1}, folder / "run");
  trained->add_hook(std::make_unique<LoggerHook>(LoggerHookOptions{.sinks = {{"jsonl"}}}));
  trained->add_hook(
      std::make_unique<CheckpointHook>(CheckpointHookOptions{.interval = 0, .save_best = {"noisy/loss"}}));
  trained->add_hook(std::make_unique<EarlyStoppingHook>(
      EarlyStoppingHookOptions{.monitor = "noisy/loss", .rule = "greater", .stopping_threshold = 0.0}));
  trained->train(*loader(6), both());
  EXPECT_EQ(trained->progress().step, 1);  // any loss is above 0
  EXPECT_NE(trained->stop_reason().find("noisy/loss"), std::string::npos);
  EXPECT_TRUE(CheckpointStore(CheckpointStore::root_of(folder / "run")).find_best());
  const auto lines = testing::kind_of(testing::lines_of(folder / "run/log.jsonl"), "val");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(lines[0].contains("clean/loss") && lines[0].contains("noisy/loss")) << lines[0];
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

// The same bits in both modes, training with them included.
TEST(NamedSources, GiveTheSameBitsInBothModes) {
  std::vector<std::vector<MetricValues>> seen;
  std::vector<StateDict> states;
  for (const char* mode : {"eager", "graph"}) {
    const auto clean = loader(6, 1, false), noisy = loader(4, 2, false);
    const auto trained = trainer_for(mode, {.max_epochs = 3, .val_interval = 2});
    seen.emplace_back();
    trained->on(HookPoint::kAfterVal, [&](TrainContext& run) { seen.back().push_back(run.evaluation.metrics); });
    trained->train(*loader(10), NamedSources{{"clean", *clean}, {"noisy", *noisy}});
    states.push_back(trained->state_dict());
  }
  EXPECT_EQ(seen[0].size(), 8U);
  EXPECT_EQ(seen[0], seen[1]);
  testing::expect_same_bits(states[0], states[1]);
}

}  // namespace
}  // namespace duet
