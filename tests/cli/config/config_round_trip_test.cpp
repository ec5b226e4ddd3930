#include <random>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/config_data.h"

// What dump() writes reads back as the same tree.

namespace duet {
namespace {

// Trees of keys and values that YAML, the shell and the variables of the environment each see something special in.
class RandomTree {
 public:
  explicit RandomTree(uint32_t seed) : random_(seed) {}

  std::string map(int depth) {
    std::string text;
    const int count = below(5);
    for (int i = 0; i < count; ++i)
      text += (i == 0 ? "" : ", ") + quoted(std::to_string(i) + any_text()) + ": " + value(depth + 1);
    return "{" + text + "}";
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  std::string any_text() {
    static const std::vector<std::string> kParts = {
        "a",  "B7",   " ",   "  ",   ":",    ": ", "#", " #", "-",   "- ",  "'",        "\"",  "\\",
        "[",  "]",    "{",   "}",    ",",    "&",  "*", "!",  "|",   ">",   "%",        "@",   "`",
        "~",  "null", "yes", "on",   "1",    ".5", "e", "$",  "$$",  "${",  "${env:A}", "$${", "\t",
        "\n", "é",    "中",  "\x01", "\x7f", "?",  "=", "<<", "---", "...", "/"};
    std::string text;
    for (int i = below(4); i > 0; --i) text += kParts[static_cast<std::size_t>(below(static_cast<int>(kParts.size())))];
    return text;
  }

  static std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      if (c == '\n') {
        out += "\\n";
      } else if (c == '\t') {
        out += "\\t";
      } else if (c == '\x01' || c == '\x7f') {
        out += c == '\x01' ? "\\x01" : "\\x7f";
      } else {
        out += c;
      }
    }
    return out + "\"";
  }

  // As a value, in which ${ has a meaning.
  std::string quoted_value(const std::string& text) {
    std::string escaped;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text.compare(i, 2, "${") == 0) escaped += '$';
      escaped += text[i];
    }
    return quoted(escaped);
  }

  std::string value(int depth) {
    static const std::vector<std::string> kPlain = {"null",   "~",     "true", "off", "1",    "-3",
                                                    "1.0e-3", "-.inf", "abc",  "a b", "a/b.c"};
    const int choice = below(depth > 4 ? 4 : 8);
    if (choice < 2) return kPlain[static_cast<std::size_t>(below(static_cast<int>(kPlain.size())))];
    if (choice < 4) return quoted_value(any_text());
    if (choice < 6) return map(depth);
    std::string text;
    const int count = below(4);
    for (int i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + value(depth + 1);
    return "[" + text + "]";
  }

  std::mt19937 random_;
};

using Data = ConfigNode::Data;

// Kind, text and quotes of all nodes; origins and paths apart.
std::string written_out(const Data& data) {
  std::string text = std::to_string(static_cast<int>(data.kind)) + (data.quoted ? "q" : "p") + data.text;
  for (const auto& [key, item] : data.items) text += "\n<" + key + "|" + written_out(*item) + ">";
  return text;
}

TEST(ConfigRoundTrip, RandomTreesReadBackAsTheyWere) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    const std::string text = RandomTree(seed).map(0);
    const std::string dumped = ConfigNode::parse_text(text, "tree.yaml").dump();
    if (dumped.empty()) continue;  // an empty map
    const std::string before = written_out(*parse_yaml(text, "tree.yaml"));
    const std::string after = written_out(*parse_yaml(dumped, "dumped.yaml"));
    ASSERT_EQ(before, after) << "seed " << seed << "\n" << text << "\n" << dumped;
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
