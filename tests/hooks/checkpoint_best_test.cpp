// The best checkpoints, and what is published.
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include <gtest/gtest.h>
#include "io/safetensors.h"
#include "tests/hooks/checkpoint_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"

namespace duet {
namespace {

TEST_F(Checkpoint, KeepsTheBestByTheFirstMetric) {
  CheckpointHook hook({.interval = 1, .max_keep = 2, .save_best = {"auto"}});
  begin(hook);
  for (const double accuracy : {0.5, 0.7, 0.7, std::nan(""), std::numeric_limits<double>::infinity(), 0.6}) {
    const std::string said = validate(hook, {{"accuracy", accuracy}, {"loss", -accuracy}});
    EXPECT_EQ(said.find("expected a finite number: this step is not the best") != std::string::npos,
              !std::isfinite(accuracy));
  }
  EXPECT_EQ(saved(), (FileNames{"step-2", "step-5", "step-6"}));  // ties are no improvement
  EXPECT_EQ(best(), "step-2");
  EXPECT_EQ(CheckpointStore(root()).find_best(), root() + "/step-2");
  const StateDict state = CheckpointStore::load(root() + "/step-2").part("hooks.checkpoint");
  EXPECT_EQ(state.text("best_folder"), "step-2");
  EXPECT_EQ(state.text("best_metric"), "accuracy");
  EXPECT_EQ(state.number("best_score"), 0.7);
}

// What the first metric names first; else the first by name, the loss only if there is no other.
TEST_F(Checkpoint, TakesOneMetricForTheBest) {
  struct Case {
    std::string first;
    MetricValues metrics;  // of the first validation; those of the second are twice as large
    std::string goes_by, best;
  };
  for (const Case& one :
       std::vector<Case>{{"", {{"loss", 0.1}, {"mIoU", 0.1}}, "mIoU", "step-2"},
                         {"", {{"loss", 0.1}}, "loss", "step-1"},
                         {"mIoU", {{"aAcc", -0.1}, {"loss", -0.1}, {"mIoU", 0.1}}, "mIoU", "step-2"}}) {
    run.context.progress.step = 0;
    run.context.evaluation.first_metric = one.first;
    CheckpointHook hook({.interval = 0, .save_best = {"auto"}});
    hook.before_train(run.context);
    for (const double factor : {1.0, 2.0}) {
      MetricValues metrics = one.metrics;
      for (auto& metric : metrics) metric.second *= factor;
      validate(hook, metrics);
    }
    EXPECT_EQ(best(), one.best) << one.goes_by;
    EXPECT_EQ(hook.state_dict().text("best_metric"), one.goes_by);
  }
}

// Deleted by somebody, or rotated away while another was the best that a rollback has set aside since.
TEST_F(Checkpoint, SeeksTheBestAnewWhereItIsGone) {
  const CheckpointHookOptions options{.interval = 1, .max_keep = 10, .save_best = {"accuracy"}};
  CheckpointHook first(options);
  begin(first);
  for (const double accuracy : {0.9, 0.5}) validate(first, {{"accuracy", accuracy}});
  wait_for_saves();
  fs::remove_all(root() + "/step-1");
  CheckpointHook second(options);
  second.load_state_dict(CheckpointStore::load(root() + "/step-2").part("hooks.checkpoint"));
  begin(second);
  const std::string gone = "step-1, the best checkpoint by accuracy 0.9, is not there any more";
  EXPECT_NE(validate(second, {{"accuracy", 0.6}}).find(gone), std::string::npos);
  EXPECT_EQ(best(), "step-3");
  EXPECT_EQ(validate(second, {{"accuracy", 0.5}}).find(gone), std::string::npos);
  EXPECT_EQ(best(), "step-3");
}

TEST_F(Checkpoint, ComparesByNameOrByRule) {
  const auto best_of = [&](const std::string& metric, const std::string& rule) {
    run.context.progress.step = 0;
    CheckpointHook hook({.interval = 0, .save_best = {metric}, .rule = rule});
    hook.before_train(run.context);
    for (const double score : {2.0, 3.0, 1.0}) validate(hook, {{metric, score}});
    hook.after_train(run.context);
    for (const double score : {-9.0, 9.0}) run.validation(hook, {{metric, score}});  // outside of training
    return best();
  };
  EXPECT_EQ(best_of("mIoU", ""), "step-2");
  EXPECT_EQ(best_of("word_error_rate", ""), "step-3");
  EXPECT_EQ(best_of("Perplexity", ""), "step-3");
  EXPECT_EQ(best_of("mIoU", "less"), "step-3");
  EXPECT_EQ(best_of("loss", "greater"), "step-2");
}

TEST_F(Checkpoint, ABestOneThatWasNotWrittenIsNone) {
  CheckpointHook hook({.interval = 0, .save_best = {"accuracy"}});
  begin(hook);
  const auto validate = [&](double accuracy) {
    train(hook, 1);
    run.validation(hook, {{"accuracy", accuracy}});
  };
  const std::string said = testing::stderr_of([&] {
    validate(0.5);
    fill_disk();
    validate(0.9);
    free_disk();
    validate(0.7);  // better than what there is
    hook.after_train(run.context);
  });
  EXPECT_EQ(best(), "step-3");
  EXPECT_EQ(CheckpointStore::load(root() + "/step-3").part("hooks.checkpoint").number("best_score"), 0.7);
  const auto is_announced = [&](const std::string& step) {
    return said.find("best checkpoint so far: " + step) != std::string::npos;
  };
  EXPECT_TRUE(is_announced("step-1") && is_announced("step-3")) << said;
  EXPECT_FALSE(is_announced("step-2")) << said;
}

TEST_F(Checkpoint, KeepsTheBestOfEachOfSeveralMetrics) {
  const auto pointer = [&](const std::string& name) {
    wait_for_saves();
    return read_bytes(root() + "/" + name);
  };
  const CheckpointHookOptions options{.interval = 1, .max_keep = 2, .save_best = {"accuracy", "val/loss"}};
  CheckpointHook hook(options);
  begin(hook);
  const std::vector<std::pair<double, double>> results = {{0.5, 3}, {0.9, 2}, {0.7, 1}, {0.8, 4}, {0.6, 5}, {0.1, 6}};
  for (const auto& [accuracy, loss] : results) validate(hook, {{"accuracy", accuracy}, {"val/loss", loss}});
  EXPECT_EQ(pointer("best"), "step-2\n");
  EXPECT_EQ(pointer("best_accuracy"), "step-2\n");
  EXPECT_EQ(pointer("best_val_loss"), "step-3\n");
  EXPECT_EQ(saved(), (FileNames{"step-2", "step-3", "step-5", "step-6"}));
  EXPECT_EQ(CheckpointStore(root()).find_best("best_val_loss"), root() + "/step-3");

  CheckpointHook resumed(options);  // the process died before it could name them
  resumed.load_state_dict(CheckpointStore::load(root() + "/step-6").part("hooks.checkpoint"));
  for (const char* name : {"best", "best_accuracy", "best_val_loss"}) fs::remove(root() + "/" + name);
  resumed.before_train(run.context);
  EXPECT_EQ(pointer("best") + pointer("best_accuracy") + pointer("best_val_loss"), "step-2\nstep-2\nstep-3\n");
  run.state.hook = &resumed;
  validate(resumed, {{"accuracy", 0.85}, {"val/loss", 0.5}});
  EXPECT_EQ(pointer("best") + pointer("best_val_loss"), "step-2\nstep-7\n");
  EXPECT_EQ(saved(), (FileNames{"step-2", "step-6", "step-7"}));
}

TEST_F(Checkpoint, KeepsTheKBestOfAMetric) {
  const CheckpointHookOptions options{.interval = 1, .max_keep = 2, .save_best = {"accuracy"}, .save_top_k = 3};
  CheckpointHook hook(options);
  begin(hook);
  for (const double accuracy : {0.5, 0.9, 0.1, 0.7, 0.7, 0.2}) validate(hook, {{"accuracy", accuracy}});
  EXPECT_EQ(best(), "step-2");
  EXPECT_EQ(saved(), (FileNames{"step-2", "step-4", "step-5", "step-6"}));  // the last two, too
  run.validation(hook, {{"accuracy", 0.9}});                                // better on other data
  EXPECT_EQ(CheckpointStore::load(root() + "/step-6").part("hooks.checkpoint").text("best_folder.2"), "step-4");

  CheckpointHook resumed(options);
  resumed.load_state_dict(CheckpointStore::load(root() + "/step-6").part("hooks.checkpoint"));
  begin(resumed);
  for (const double accuracy : {0.95, 0.3, 0.3}) validate(resumed, {{"accuracy", accuracy}});
  EXPECT_EQ(best(), "step-7");
  EXPECT_EQ(saved(), (FileNames{"step-2", "step-6", "step-7", "step-8", "step-9"}));
}

TEST_F(Checkpoint, SavesTheBestAsTheWeightsThatWereEvaluated) {
  CheckpointHook hook({.interval = 2, .save_best = {"accuracy"}, .save_top_k = 2, .best_weights_only = true});
  begin(hook);
  for (const double accuracy : {0.5, 0.9, 0.1, 0.7, 0.6}) validate(hook, {{"accuracy", accuracy}});
  EXPECT_EQ(saved(), (FileNames{"step-2", "step-4"}));  // by the interval
  FileNames weights;
  for (const auto& entry : fs::directory_iterator(root())) {
    if (entry.path().extension() == ".safetensors") weights.insert(entry.path().filename());
  }
  // The checkpoint of step 4 was before the validation that put step 1 out.
  EXPECT_EQ(weights, (FileNames{"step-1.safetensors", "step-2.safetensors", "step-4.safetensors"}));
  EXPECT_EQ(CheckpointStore(root()).find_best(), root() + "/step-2.safetensors");
  const NamedTensors tensors = read_safetensors(root() + "/step-2.safetensors");
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0].first, "weight");
  EXPECT_EQ(tensors[0].second.min().item<double>(), 2);

  fill_disk();
  const std::string said = validate(hook, {{"accuracy", 1.0}});
  free_disk();
  EXPECT_NE(said.find("no checkpoint of step 6"), std::string::npos) << said;
  EXPECT_EQ(best(), "step-2.safetensors");
  EXPECT_EQ(hook.state_dict().number("best_score"), 0.9);
}

TEST_F(Checkpoint, PublishesWhatItIsAskedFor) {
  CheckpointHook hook({.interval = 0, .save_best = {"accuracy"}, .published_keys = {"model"}});
  hook.before_train(run.context);
  validate(hook, {{"accuracy", 1}});
  train(hook, 1);
  hook.after_train(run.context);
  std::map<std::string, std::string> published;  // by what comes before the hash
  for (const auto& entry : fs::directory_iterator(folder / "run/published")) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(name.ends_with(".safetensors")) << name;
    published[name.substr(0, name.find('-'))] = entry.path();
  }
  ASSERT_EQ(published.size(), 2U);
  for (const auto& [name, step] : {std::pair{"best", 1.0}, {"last", 2.0}}) {
    const NamedTensors tensors = read_safetensors(published.at(name));
    ASSERT_EQ(tensors.size(), 1U);
    EXPECT_EQ(tensors[0].first, "weight");
    EXPECT_EQ(tensors[0].second.min().item<double>(), step) << name;
  }
  // Not what was stopped on the way, and nothing under a name that is none.
  fs::remove_all(folder / "run/published");
  hook.before_train(run.context);
  train(hook, 1);
  run.context.control.outcome = RunOutcome::kInterrupted;
  hook.after_train(run.context);
  EXPECT_FALSE(fs::exists(folder / "run/published"));
  run.context.control.outcome = RunOutcome::kFinished;
  CheckpointHook other({.interval = 1, .published_keys = {"modell", "hooks.ema.weights"}});
  other.before_train(run.context);
  train(other, 1);
  expect_contains(testing::stderr_of([&] { other.after_train(run.context); }),
                  {"nothing below 'modell'", "nothing below 'hooks.ema.weights'"});
  CheckpointHook half({.interval = 1, .published_keys = {"model", "hooks.ema.weights"}});
  half.before_train(run.context);
  train(half, 1);
  expect_contains(testing::stderr_of([&] { half.after_train(run.context); }),
                  {"nothing below 'hooks.ema.weights'", "published '"});
}

}  // namespace
}  // namespace duet
