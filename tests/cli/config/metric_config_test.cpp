#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "metrics/metric.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"

namespace duet {
namespace {

using Names = std::vector<std::string>;

ConfigNode parse(const std::string& text) { return ConfigNode::parse_text(text, "c.yaml"); }

Names names_of(const std::string& text) { return metric_names(read_metrics(parse(text))); }

RunConfig run_config(const std::string& text) { return parse_run_config(parse("model: {type: Mlp}\n" + text), "c"); }

class ConstantMetric : public Metric {
 public:
  explicit ConstantMetric(std::string name) : name_(std::move(name)) {}
  Names names() const override { return {name_}; }
  void reset() override {}
  void add(const Batch&, const NamedTensors&, double) override {}
  MetricValues compute() const override { return {{name_, 1}}; }

 private:
  std::string name_;
};

// Refuses the second batch.
class Second : public ConstantMetric {
 public:
  Second() : ConstantMetric("second") {}
  void add(const Batch&, const NamedTensors&, double) override {
    if (++seen_ == 2) throw DataError("[Second] found the second batch, expected one");
  }

 private:
  int seen_ = 0;
};

// The first one is what save_best: auto goes by.
TEST(MetricConfig, NamesWhatOneMetricOrAListReport) {
  for (const auto& [text, names] : std::vector<std::pair<std::string, Names>>{
           {"{}", {"loss"}},
           {"evaluator: null", {"loss"}},
           {"evaluator: []", {"loss"}},
           {"val_evaluator: null", {"loss"}},
           {"evaluator: {type: Accuracy}", {"accuracy", "loss"}},
           {"val_evaluator: {type: Accuracy}", {"accuracy", "loss"}},
           {"evaluator: [{type: Accuracy}, {type: Perplexity}]", {"accuracy", "perplexity", "loss"}},
           {"evaluator: [{type: ConfusionMatrix, num_classes: 3}, {type: Perplexity}]", {"perplexity", "loss"}},
           {"evaluator: {type: IoUMetric, num_classes: 2, iou_metrics: mDice, prefix: seg}",
            {"seg/aAcc", "seg/mDice", "seg/mAcc", "loss"}},
           {"evaluator: {type: Perplexity, loss: nll, prefix: text}", {"text/perplexity", "loss"}},
           {"evaluator: [{type: MeanLoss}, {type: Accuracy}]", {"loss", "accuracy"}}})
    EXPECT_EQ(names_of(text), names) << text;
}

TEST(MetricConfig, GivesTheMetricsToTheTrainer) {
  const auto metrics =
      read_metrics(parse("evaluator: [{type: MeanLoss}, {type: MeanLoss, prefix: val}, {type: Mine}]"));
  FakeTrainer trainer({.max_steps = 1});
  add_metrics(metrics, trainer);
  FakeData data(2);
  const MetricValues values = trainer.validate(data);
  Names found;
  for (const auto& entry : values) found.push_back(entry.first);
  EXPECT_EQ(found, (Names{"loss", "mine", "val/loss"}));
}

TEST(MetricConfig, WhatDoesNotFitTheFirstBatchIsAMistakeOfTheConfigAndLaterOnOneOfTheData) {
  const auto validate = [](const std::string& text) {
    FakeTrainer trainer({.max_steps = 1});
    add_metrics(read_metrics(parse(text)), trainer);
    FakeData data(2);
    trainer.validate(data);
  };
  expect_error<ConfigError>([&] { validate("x: 1\nevaluator:\n  - {type: Perplexity, loss: nll}\n"); },
                            {"c.yaml:3: evaluator.0: [Perplexity]", "expected 'nll'"});
  expect_error<DataError>([&] { validate("evaluator: {type: Second}\n"); }, {"the second"});
}

TEST(MetricConfig, TestsWithMetricsOfTheirOwnIfThereAreAny) {
  EXPECT_EQ(metric_names(run_config("evaluator: {type: Accuracy}").test_metrics), (Names{"accuracy", "loss"}));
  const RunConfig config = run_config("evaluator: {type: Accuracy}\ntest_evaluator: {type: Perplexity}\n");
  EXPECT_EQ(metric_names(config.metrics), (Names{"accuracy", "loss"}));
  EXPECT_EQ(metric_names(config.test_metrics), (Names{"perplexity", "loss"}));
}

TEST(MetricConfig, FindsMistakesAtTheStart) {
  for (const auto& [text, parts] : std::vector<std::pair<std::string, Names>>{
           {"evaluator: [{type: Acuracy}]", {"c.yaml:2", "evaluator.0.type is 'Acuracy'", "did you mean 'Accuracy'"}},
           {"evaluator: [Accuracy]", {"evaluator.0 is 'Accuracy'", "expected a map"}},
           {"evaluator: {type: Accuracy, prefix: val/}", {"evaluator.prefix is 'val/'", "expected a word"}},
           {"evaluator: [{type: Accuracy}, {type: Accuracy, prediction: aux}]",
            {"evaluator.1.prefix", "'accuracy'", "evaluator.0"}},
           {"evaluator: [{type: Loss}]", {"evaluator.0.prefix", "'loss'", "every evaluation"}},
           {"evaluator: {type: Accuracy}\nval_evaluator: {type: Accuracy}", {"val_evaluator is set beside evaluator"}},
           {"test_evaluator: {type: Acuracy}", {"test_evaluator.type is 'Acuracy'"}}})
    expect_error<ConfigError>([&] { run_config(text); }, parts);
}

TEST(MetricConfig, ResultsAreCalledByTheClassesOfTheData) {
  const ConfigNode root = parse(
      "evaluator: [{type: F1, num_classes: 2, average: none}, {type: ConfusionMatrix, num_classes: 2, prefix: a, "
      "class_names: [x, y], flatten: true}, {type: F1, num_classes: 3, average: none, prefix: b}]");
  const std::vector<MetricConfig> metrics = read_metrics(root);
  name_classes(metrics, {"ant", "${HOME} bee"});
  EXPECT_EQ(metric_names(metrics), (Names{"f1_ant", "f1_${HOME} bee", "a/confusion_x_x", "a/confusion_x_y",
                                          "a/confusion_y_x", "a/confusion_y_y", "b/f1_0", "b/f1_1", "b/f1_2", "loss"}));
  EXPECT_NE(root.dump().find("# the training data"), std::string::npos) << root.dump();
}

TEST(MetricConfig, KnowsMetricsOfTheUser) {
  EXPECT_EQ(names_of("evaluator: [{type: Mine}, {type: Mine, name: yours}]"), (Names{"mine", "yours", "loss"}));
  expect_error<ConfigError>([] { names_of("evaluator: [{type: Mine, nam: yours}]"); }, {"unknown key 'nam'"});
  expect_error<ConfigError>([] { register_metric("Mine", [](ConfigNode&) { return nullptr; }); }, {"'Mine'", "twice"});
}

const bool kRegistered = [] {
  register_metric("Mine", [](ConfigNode& node) {
    return std::make_unique<ConstantMetric>(node.read<std::string>("name", "mine"));
  });
  register_metric("Second", [](ConfigNode&) { return std::make_unique<Second>(); });
  register_metric("Loss", [](ConfigNode&) { return std::make_unique<ConstantMetric>("loss"); });
  return true;
}();

}  // namespace
}  // namespace duet
