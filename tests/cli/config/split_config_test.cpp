#include "cli/config/split_config.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"

// Parts of the same files that are trained on and evaluated.

namespace duet {
namespace {

RunConfig parsed(const std::string& train, const std::string& val) {
  const std::string text = "model: {type: Mlp}\ntrainer: {max_steps: 1}\ndata:\n  train: {type: " + train +
                           "}\n  val: {type: " + val + "}\n";
  return parse_run_config(ConfigNode::parse_text(text, "c.yaml"), "c");
}

std::string value(const RunConfig& config, const std::string& key) { return config.val.at(0).node.child(key).text(); }

TEST(SplitConfig, ValTakesSeedAndFractionOfTheTrainingData) {
  for (const std::string data :
       {"Csv, path: t.csv", "ImageFolder, root: t", "Subset, dataset: {type: Npy, arrays: {x: t.npy}}"}) {
    const RunConfig config = parsed(data + ", split: train, split_seed: 7, val_fraction: 0.5", data + ", split: val");
    EXPECT_EQ(value(config, "split_seed"), "7");
    EXPECT_EQ(value(config, "val_fraction"), "0.5");
  }
}

TEST(SplitConfig, ADifferenceIsAnErrorThatNamesBothKeys) {
  const auto fails = [](const std::string& train, const std::string& val, const std::vector<std::string>& words) {
    expect_error<ConfigError>([&] { parsed(train, val); }, words);
  };
  fails("Csv, path: t.csv, split: train, split_seed: 7", "Csv, path: ./t.csv, split: val, split_seed: 3",
        {"data.val.split_seed is 3, expected 7", "data.train.split_seed"});
  fails("Csv, path: t.csv, split: train", "Csv, path: t.csv, split: val, val_fraction: 0.5",
        {"data.val.val_fraction is 0.5, expected 0.2", "data.train.val_fraction"});
  fails("Text, path: t, val_fraction: 0.3", "Text, path: t, split: val, val_fraction: 0.5",
        {"data.val.val_fraction", "data.train.val_fraction"});
  fails("ImageFolder, root: t", "ImageFolder, root: x/../t, split: val",
        {"data.val.split is val", "data.train.split is all", "set data.train.split: train"});
  fails("Repeat, times: 2, dataset: {type: Csv, path: t.csv}", "Csv, path: t.csv, split: val",
        {"data.val.split", "data.train.dataset.split"});
}

TEST(SplitConfig, AnEvaluationOnTrainingDataIsWarnedOf) {
  const auto warning = [](const std::string& train, const std::string& val) {
    return testing::stderr_of([&] { parsed(train, val); });
  };
  for (const char* data : {"Csv, path: t.csv", "Csv, path: t.csv, split: train"}) {
    EXPECT_THAT(warning(data, "Csv, path: t.csv"), ::testing::HasSubstr("data.val reads samples that are trained on"));
  }
  EXPECT_THAT(warning("Text, path: t", "Text, path: t"), ::testing::HasSubstr("Set split: val"));
  EXPECT_EQ(warning("Csv, path: t.csv, split: train", "Csv, path: t.csv, split: val"), "");
  EXPECT_EQ(warning("Csv, path: t.csv", "Csv, path: v.csv"), "");
  const std::string half = "Subset, dataset: {type: Csv, path: t.csv}, split: ";
  EXPECT_EQ(warning(half + "train", half + "val"), "");
  EXPECT_THAT(warning(half + "train", half + "all"), ::testing::HasSubstr("trained on"));
  const std::string some = "Subset, dataset: {type: Npy, arrays: {x: t.npy}}, indices: ";
  EXPECT_EQ(warning(some + "[0, 1]", some + "[2]"), "");
}

TEST(SplitConfig, OtherFilesAndEqualValuesAreLeftAlone) {
  EXPECT_EQ(
      value(parsed("Csv, path: t.csv, split: train, split_seed: 7", "Csv, path: v.csv, split: val"), "split_seed"), "");
  parsed("Csv, path: t.csv", "Csv, path: v.csv, split: val");
  parsed("Csv, path: t.csv, split: train", "Csv, path: t.csv, split: val, val_fraction: 0.20, split_seed: 0");
  parsed("Csv, path: t.csv", "Csv, path: t.csv");
  parsed("Csv, path: ''", "Csv, path: ''");  // whoever reads it says what is wrong
}

}  // namespace
}  // namespace duet
