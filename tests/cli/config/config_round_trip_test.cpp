#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "cli/config/config_data.h"

// What dump() writes reads back as the same tree.

namespace duet {
namespace {

// What YAML, the shell and the variables of the environment each see something special in.
const std::vector<std::string>& special_parts() {
  static const std::vector<std::string> kParts = {
      "a",  "B7", " ",        "  ",  ":",  ": ", "#", " #", "-",    "- ",   "'",    "\"",  "\\", "[",   "]",   "{", "}",
      ",",  "&",  "*",        "!",   "|",  ">",  "%", "@",  "`",    "~",    "null", "yes", "on", "1",   ".5",  "e", "$",
      "$$", "${", "${env:A}", "$${", "\t", "\n", "é", "中", "\x01", "\x7f", "?",    "=",   "<<", "---", "...", "/"};
  return kParts;
}

// A scalar of YAML in quotes.
std::string in_quotes(const std::string& text) { return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true); }

// A value in quotes: in one, ${ has a meaning.
std::string value_in_quotes(std::string text) {
  for (std::size_t at = 0; (at = text.find("${", at)) != std::string::npos; at += 3) text.insert(at, "$");
  return in_quotes(text);
}

using Data = ConfigNode::Data;

// Kind, text and quotes of all nodes; origins and paths apart.
std::string written_out(const Data& data) {
  std::string text = std::to_string(static_cast<int>(data.kind)) + (data.quoted ? "q" : "p") + data.text;
  for (const auto& [key, item] : data.items) text += "\n<" + key + "|" + written_out(*item) + ">";
  return text;
}

TEST(ConfigRoundTrip, EveryTextReadsBackAsKeyAndValue) {
  for (const std::string& first : special_parts()) {
    for (const std::string& second : special_parts()) {
      const std::string key = in_quotes(first + second), value = value_in_quotes(first + second);
      const std::string text = "{" + key + ": " + value + ", l: [" + value + ", [], {" + key + ": [1, " + value +
                               "]}], m: {n: {}, o: -.inf, p: 1.0e-3, q: off, r: a b, s: ~}}";
      const std::string dumped = ConfigNode::parse_text(text, "tree.yaml").dump();
      ASSERT_EQ(written_out(*parse_yaml(text, "tree.yaml")), written_out(*parse_yaml(dumped, "dumped.yaml")))
          << text << "\n"
          << dumped;
    }
  }
}

// Overrides give the values of one list or map several origins, which are written as blocks.
TEST(ConfigRoundTrip, ValuesOfSeveralOriginsReadBackToo) {
  ConfigNode c =
      ConfigNode::parse_text("l: [1, [2, 3], {a: [4]}]\nm:\n  - x\n  - y\nn: {k: [[1, 2], [3]]}\n", "c.yaml");
  for (const char* word : {"l.1.0=7", "l.2.a.1=8", "n.k.1.0=9", "m.2=z"}) c.override_with(word);
  const std::string text = c.dump();
  const ConfigNode again = ConfigNode::parse_text(text, "again.yaml");
  EXPECT_EQ(again.dump().find("null"), std::string::npos);
  EXPECT_EQ(again.read<std::vector<std::string>>("m", {}), (std::vector<std::string>{"x", "y", "z"})) << text;
  EXPECT_EQ(again.list("l").at(2).read<std::vector<int64_t>>("a", {}), (std::vector<int64_t>{4, 8})) << text;
  for (const char* part :
       {"- 7  # command line", "- 3  # c.yaml:1", "- x  # c.yaml:3", "- z  # command line", "- 9  # command line"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
  EXPECT_EQ(ConfigNode::parse_text(text, "x").list("l").size(), 3U);
}

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
