#include "cli/config/config.h"
#include "base/error.h"
#include <gtest/gtest.h>

#include <limits>

// The schema is what the code reads.

namespace duet {
namespace {

const ConfigKey& key_of(const std::vector<ConfigKey>& keys, const std::string& path) {
  static const ConfigKey kNone;
  for (const ConfigKey& key : keys) {
    if (key.path == path) return key;
  }
  ADD_FAILURE() << "no key " << path;
  return kNone;
}

TEST(ConfigSchema, HoldsTypesDefaultsRangesAndChoices) {
  const ConfigNode c = ConfigNode::parse_text("n: 3\ns: {x: 1}\nl: [{y: 1}]\n", "c.yaml");
  c.read_int("n", 5, 1);
  c.read_int("few", 5, 1, 9);
  c.read_number("rate", 0.5, 0, 1);
  c.read_number("lr", 0.1, std::numeric_limits<double>::min(), std::numeric_limits<double>::max());
  c.read_choice("mode", "eager", {"eager", "graph"});
  c.read_bytes("cache", 1024);
  c.read<bool>("on", true);
  c.read<std::vector<double>>("betas", {0.9, 0.99});
  c.find<std::string>("word");
  c.child("s").need<int64_t>("x");
  c.child("s").read<std::string>("amount", "auto");
  c.child("s").read_number("amount2", 1, 0);
  c.list("l")[0].read<int64_t>("y", 7);
  c.child("later");

  const std::vector<ConfigKey> keys = c.schema();
  EXPECT_EQ(key_of(keys, "n").type, "integer");
  EXPECT_EQ(key_of(keys, "n").fallback, "5");  // the default, whatever the file says
  EXPECT_EQ(key_of(keys, "n").range, "at least 1");
  EXPECT_EQ(key_of(keys, "few").range, "1 to 9");
  EXPECT_EQ(key_of(keys, "rate").range, "0 to 1");
  EXPECT_EQ(key_of(keys, "lr").range, "above 0");
  EXPECT_EQ(key_of(keys, "mode").choices, (std::vector<std::string>{"eager", "graph"}));
  EXPECT_EQ(key_of(keys, "cache").type, "bytes");
  EXPECT_EQ(key_of(keys, "cache").fallback, "1024");
  EXPECT_EQ(key_of(keys, "on").type, "true/false");
  EXPECT_EQ(key_of(keys, "betas").type, "list of numbers");
  EXPECT_EQ(key_of(keys, "betas").fallback, "[0.9, 0.99]");
  EXPECT_EQ(key_of(keys, "word").fallback, "");
  EXPECT_FALSE(key_of(keys, "word").required);
  EXPECT_TRUE(key_of(keys, "s.x").required);
  EXPECT_EQ(key_of(keys, "l").type, "list");
  EXPECT_EQ(key_of(keys, "l.0.y").fallback, "7");
  EXPECT_EQ(key_of(keys, "later").type, "map");
  EXPECT_EQ(keys.front().path, "n");
  EXPECT_EQ(keys.back().path, "later");
}

TEST(ConfigSchema, AProbeReadsEveryKeyUntilTheFactoryChecksThem) {
  const auto factory = [](const ConfigNode& node) {
    node.need<std::string>("path");
    node.need<int64_t>("count");
    node.read_choice("kind", "", {"a", "b"});
    node.read_int("size", 0, 1);
    node.child("inner").need<double>("deep");
    node.reject_unknown();
    ADD_FAILURE() << "the factory would build something";
  };
  const ConfigNode probe = ConfigNode::probe();
  EXPECT_THROW(factory(probe), KeysRead);
  std::vector<std::string> paths;
  for (const ConfigKey& key : probe.schema()) paths.push_back(key.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"path", "count", "kind", "size", "inner.deep"}));
}

TEST(ConfigSchema, AProbeHasTheSectionsOfItsText) {
  const ConfigNode probe = ConfigNode::probe("clip: {}\nscale: {}\n");
  EXPECT_FALSE(probe.child("clip").is_empty());
  EXPECT_EQ(probe.child("clip").kind(), ConfigNode::Kind::kMap);
  EXPECT_EQ(probe.read<std::string>("scale", "dynamic"), "dynamic");  // a section where a value may stand
  EXPECT_TRUE(probe.child("other").is_empty() || probe.child("other").kind() == ConfigNode::Kind::kAbsent);
}

}  // namespace
}  // namespace duet
