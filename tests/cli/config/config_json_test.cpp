#include <gtest/gtest.h>
#include "cli/config/config.h"

namespace duet {
namespace {

TEST(ConfigJson, SaysWhatTheResolvedConfigDoes) {
  const ConfigNode root = ConfigNode::parse_text(
      "seed: 7\n"
      "name: \"7\"  # a text\n"
      "optimizer: {type: AdamW, lr: 1e-3, betas: [0.5, .inf], fused: true}\n"
      "hooks:\n"
      "  - {type: EMAHook, momentum: 0.25}\n"
      "  - a word: and more\n"
      "empty: null\n",
      "test.yaml");
  root.child("optimizer").read<int64_t>("warmup", 12);  // a default that is nowhere but in the dump
  EXPECT_EQ(
      config_json(root),
      R"({"seed":7,"name":"7","optimizer":{"type":"AdamW","lr":0.001,"betas":[0.5,".inf"],"fused":true,"warmup":12},)"
      R"("hooks":[{"type":"EMAHook","momentum":0.25},{"a word":"and more"}],"empty":null})");
}

}  // namespace
}  // namespace duet
