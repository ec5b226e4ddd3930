#include "cli/config/compare_data.h"
#include <tuple>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"

// Data that is trained on beside data that is evaluated.

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
  struct Case {
    std::string train, val;
    std::vector<std::string> parts;
  };
  for (const Case& c : {Case{"Csv, path: t.csv, split: train, split_seed: 7",
                             "Csv, path: ./t.csv, split: val, split_seed: 3",
                             {"data.val.split_seed is 3, expected 7", "data.train.split_seed"}},
                        Case{"Text, path: t, val_fraction: 0.3",
                             "Text, path: t, split: val, val_fraction: 0.5",
                             {"data.val.val_fraction", "data.train.val_fraction"}},
                        Case{"ImageFolder, root: t",
                             "ImageFolder, root: x/../t, split: val",
                             {"data.val.split is val", "data.train.split is all", "set data.train.split: train"}},
                        Case{"Repeat, times: 2, dataset: {type: Csv, path: t.csv}",
                             "Csv, path: t.csv, split: val",
                             {"data.val.split", "data.train.dataset.split"}}})
    expect_error<ConfigError>([&] { parsed(c.train, c.val); }, c.parts);
}

std::string warning(const std::string& train, const std::string& val) {
  return testing::stderr_of([&] { parsed(train, val); });
}

TEST(SplitConfig, AnEvaluationOnTrainingDataIsWarnedOf) {
  const std::string half = "Subset, dataset: {type: Csv, path: t.csv}, split: ";
  const std::string some = "Subset, dataset: {type: Npy, arrays: {x: t.npy}}, indices: ";
  const std::string csv = "Csv, path: t.csv";
  for (const auto& [train, val, is_warned] :
       {std::tuple(csv, csv, true),
        {csv + ", split: train", csv, true},
        {half + "train", half + "all", true},
        {csv + ", split: train", csv + ", split: val, val_fraction: 0.20, split_seed: 0", false},
        {csv, "Csv, path: v.csv, split: val", false},
        {half + "train", half + "val", false},
        {some + "[0, 1]", some + "[2]", false}})
    EXPECT_EQ(warning(train, val).find("data.val reads samples that are trained on") != std::string::npos, is_warned)
        << train << " beside " << val;
}

TEST(NormalizeConfig, AnotherOneThanThatOfTheTrainingDataIsWarnedOf) {
  const std::string plain = "{type: Normalize}", other = "{type: Normalize, mean: [0.4, 0.5, 0.6]}";
  for (const auto& [train, val, is_warned] :
       {std::tuple(plain, std::string(), true),
        {"", plain, true},
        {plain, other, true},
        {other, other, false},
        {"{type: RandomFlip}", "{type: Resize, size: 8}", false},
        {plain, "{type: Resize, size: 8}, {type: Normalize, mean: [0.5, 0.5, 0.5], std: 0.5}", false}}) {
    const std::string inner = "{type: ImageFolder, root: b, transforms: [" + val + "]}";
    EXPECT_EQ(warning("ImageFolder, root: a, transforms: [" + train + "]", "Concat, datasets: [" + inner + "]")
                      .find("data.val uses a different Normalize than data.train") != std::string::npos,
              is_warned)
        << train << " beside " << val;
  }
}

}  // namespace
}  // namespace duet
