#include "cli/config/normalize_config.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "tests/support/log_lines.h"

namespace duet {
namespace {

// What a config of these transforms is warned of.
std::string warning(const std::string& train, const std::string& val, const std::string& key = "val") {
  const std::string head = "model: {type: Mlp}\ntrainer: {max_steps: 1}\ndata:\n";
  const std::string known = "  train: {type: ImageFolder, root: a, transforms: [" + train + "]}\n";
  const std::string inner = "{type: ImageFolder, root: b, transforms: [" + val + "]}";
  const std::string text = head + known + "  " + key + ": {type: Concat, datasets: [" + inner + "]}\n";
  return testing::stderr_of([&] { parse_run_config(ConfigNode::parse_text(text, "c.yaml"), "c"); });
}

TEST(NormalizeConfig, AnotherOneThanThatOfTheTrainingDataIsWarnedOf) {
  const std::string plain = "{type: Normalize}", other = "{type: Normalize, mean: [0.4, 0.5, 0.6]}";
  EXPECT_THAT(warning(plain, ""), ::testing::HasSubstr("data.val has no Normalize, data.train has Normalize:"));
  EXPECT_THAT(warning("", plain), ::testing::HasSubstr("data.val has Normalize, data.train has no Normalize:"));
  EXPECT_THAT(warning(plain, "", "predict"), ::testing::HasSubstr("data.predict has no Normalize"));
  EXPECT_THAT(warning(plain, other, "test"), ::testing::HasSubstr("of another mean or std than data.train:"));
  EXPECT_EQ(warning(other, other), "");
  EXPECT_EQ(warning("{type: RandomFlip}", "{type: Resize, size: 8}"), "");
  EXPECT_EQ(warning(plain, "{type: Resize, size: 8}, {type: Normalize, mean: [0.5, 0.5, 0.5], std: 0.5}"), "");
}

}  // namespace
}  // namespace duet
