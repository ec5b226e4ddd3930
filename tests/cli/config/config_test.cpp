#include "cli/config/config.h"
#include <cstdio>
#include <fstream>
#include <gtest/gtest.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

// The message of the ConfigError that `action` throws; empty if it throws none.
std::string parse_error(const std::string& text) {
  return config_error_of([&] { ConfigNode::parse_text(text, "c.yaml"); });
}

TEST(Config, ReadsEveryType) {
  const ConfigNode c = ConfigNode::parse_text(
      "flag: off\nbig: 7\nlr: 1e-3\nname: abc\ninf: .inf\nquoted: '5'\nints: [1, 2]\nnumbers: [0.9, 1]\nwords: [a, "
      "'b']\n",
      "c.yaml");
  EXPECT_FALSE(c.read<bool>("flag", true));
  EXPECT_EQ(c.read<std::string>("flag", ""), "off");
  EXPECT_EQ(c.read<int64_t>("big", 0), 7);
  EXPECT_EQ(c.read<double>("big", 0), 7.0);
  EXPECT_EQ(c.read<double>("lr", 0), 1e-3);
  EXPECT_EQ(c.read<std::string>("name", ""), "abc");
  EXPECT_GT(c.read<double>("inf", 0), 1e300);
  EXPECT_EQ(c.read<std::string>("quoted", ""), "5");
  EXPECT_EQ(c.read<std::vector<int64_t>>("ints", {}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(c.read<std::vector<double>>("numbers", {}), (std::vector<double>{0.9, 1}));
  EXPECT_EQ(c.read<std::vector<std::string>>("words", {}), (std::vector<std::string>{"a", "b"}));
  c.reject_unknown();
}

TEST(Config, AbsentAndNullGiveTheDefault) {
  const ConfigNode c = ConfigNode::parse_text("a: null\nb: ~\nc:\nm: {x: null}\n", "c.yaml");
  for (const char* key : {"a", "b", "c", "d"}) {
    EXPECT_EQ(c.read<int64_t>(key, 5), 5) << key;
    EXPECT_FALSE(c.find<double>(key)) << key;
  }
  EXPECT_TRUE(c.child("a").is_null());
  EXPECT_FALSE(c.child("nowhere").exists());
  EXPECT_EQ(c.child("nowhere").child("deeper").read<std::string>("x", "y"), "y");
  EXPECT_TRUE(c.list("a").empty());
  expect_contains(config_error_of([&] { c.need<int64_t>("a"); }), {"c.yaml:1: a is missing"});
}

TEST(Config, AMissingKeyNamesTheUnknownOneThatLooksLikeIt) {
  const auto missing = [](const std::string& text, const std::string& key) {
    const ConfigNode c = ConfigNode::parse_text(text, "c.yaml");
    c.child("known");
    return config_error_of([&] { c.need<std::string>(key); });
  };
  EXPECT_EQ(missing("a: 1\nmodle: x\n", "model"),
            "[Config] c.yaml:2: found key 'modle', but model is missing; did you mean 'model'?");
  expect_contains(missing("Path: x\n", "path"), {"found key 'Path'"});
  expect_contains(missing("data: x\ntrainer: y\n", "model"), {"model is missing; add it"});  // nothing is near
  expect_contains(missing("known: x\n", "know"), {"know is missing; add it"});               // that one has its own use
  expect_contains(missing("ab: x\n", "lr"), {"lr is missing; add it"});
}

TEST(Config, TypeErrorsNameLinePathAndValue) {
  const ConfigNode c =
      ConfigNode::parse_text("x: 1\nsub:\n  lr: abc\n  n: 1.5\n  on: 2\n  l: [1, b]\n  q: '1'\n  m: {}\n", "c.yaml");
  const ConfigNode sub = c.child("sub");
  EXPECT_EQ(config_error_of([&] { sub.read<double>("lr", 0); }),
            "[Config] c.yaml:3: sub.lr is 'abc', expected a number");
  expect_contains(config_error_of([&] { sub.read<int64_t>("n", 0); }), {"c.yaml:4: sub.n is 1.5, expected an integer"});
  expect_contains(config_error_of([&] { sub.read<bool>("on", false); }),
                  {"c.yaml:5: sub.on is 2, expected true or false"});
  expect_contains(config_error_of([&] { sub.read<std::vector<int64_t>>("l", {}); }), {"c.yaml:6: sub.l.1 is 'b'"});
  expect_contains(config_error_of([&] { sub.read<int64_t>("q", 0); }), {"c.yaml:7: sub.q is '1'"});
  expect_contains(config_error_of([&] { sub.read<int64_t>("m", 0); }), {"c.yaml:8: sub.m is a map"});
  expect_contains(config_error_of([&] { c.child("x").child("y"); }), {"c.yaml:1: x is 1, expected a map"});
  expect_contains(config_error_of([&] { c.list("x"); }), {"c.yaml:1: x is 1, expected a list"});
  expect_contains(config_error_of([&] { sub.read<double>("l", 0); }), {"c.yaml:6: sub.l is a list of 2"});
}

TEST(Config, ErrorsPutTextInQuotesAndNumbersNot) {
  const auto shown = [](const std::string& value) {
    const std::string error =
        config_error_of([&] { ConfigNode::parse_text("v: " + value + "\n", "c.yaml").fail_value("v", "x"); });
    const std::string head = "[Config] c.yaml:1: v is ", tail = ", expected x";
    if (error.size() < head.size() + tail.size()) return error;
    return error.substr(head.size(), error.size() - head.size() - tail.size());
  };
  for (const char* bare : {"0.5", "-3", "+1e-3", "1.", ".5", "99999999999999999999", "1e999", ".inf", "-.inf", ".nan",
                           "0x1f", "true", "False"}) {
    EXPECT_EQ(shown(bare), bare);
  }
  for (const char* text : {"abc", "5x", "1:30", "1 2", "1.2.3", "e5", "truer", "off", "nan"}) {
    EXPECT_EQ(shown(text), "'" + std::string(text) + "'");
    EXPECT_EQ(shown("'" + std::string(text) + "'"), "'" + std::string(text) + "'");
  }
  EXPECT_EQ(shown("'3'"), "'3'") << "a number in quotes is text";
  EXPECT_EQ(shown("\"true\""), "'true'");
  EXPECT_EQ(shown("''"), "''");
  EXPECT_EQ(shown("null"), "null");
  EXPECT_EQ(shown("[1, 2]"), "a list of 2");
  EXPECT_EQ(shown("{a: 1}"), "a map");
}

TEST(Config, RangesAndChoices) {
  const ConfigNode c =
      ConfigNode::parse_text("n: 0\np: 1.5\nmode: grahp\nsize: 2 GiB\nbad: 2 apples\nneg: -1 MB\n", "c.yaml");
  expect_contains(config_error_of([&] { c.read_int("n", 1, 1); }),
                  {"c.yaml:1: n is 0, expected an integer of at least 1"});
  expect_contains(config_error_of([&] { c.read_number("p", 0, 0, 1); }), {"c.yaml:2: p is 1.5", "at most 1"});
  expect_contains(config_error_of([&] { c.read_choice("mode", "eager", {"eager", "graph"}); }),
                  {"c.yaml:3: mode is 'grahp'", "did you mean 'graph'"});
  EXPECT_EQ(config_error_of([&] { c.read_choice("bad", "", {"less", "greater"}); }),
            "[Config] c.yaml:5: bad is '2 apples', expected one of less, greater");  // neither is near
  constexpr double kSmallest = std::numeric_limits<double>::min(), kLargest = std::numeric_limits<double>::max();
  EXPECT_EQ(config_error_of([&] { c.read_number("n", 1, kSmallest, kLargest); }),
            "[Config] c.yaml:1: n is 0, expected a number above 0 and below infinity");
  EXPECT_EQ(config_error_of([&] { c.read_number("n", 1, 0.1); }),
            "[Config] c.yaml:1: n is 0, expected a number of at least 0.1");
  EXPECT_EQ(c.read_bytes("size", 0), int64_t{2} << 30);
  EXPECT_EQ(c.read_bytes("none", 12), 12);
  expect_contains(config_error_of([&] { c.read_bytes("bad", 0); }), {"c.yaml:5: bad is '2 apples'"});
  expect_contains(config_error_of([&] { c.read_bytes("neg", 0); }), {"c.yaml:6"});
}

TEST(Config, UnknownKeysNameTheNearestKnownOne) {
  const ConfigNode c = ConfigNode::parse_text("a:\n  lr: 1\n  learning_rat: 2\n", "c.yaml");
  c.child("a").read<double>("lr", 0);
  c.child("a").read<double>("learning_rate", 0);
  expect_contains(
      config_error_of([&] { c.reject_unknown(); }),
      {"c.yaml:3: unknown key 'learning_rat' in a", "known: lr, learning_rate", "did you mean 'learning_rate'"});
}

TEST(Config, VariablesOfMmengineAreRefused) {
  const auto message = [](const std::string& text) {
    return config_error_of([&] { ConfigNode::parse_text(text, "c.yaml"); });
  };
  expect_contains(message("x: 1\nwork_dir: runs/{{ fileBasenameNoExtension }}\n"),
                  {"c.yaml:2: work_dir has '{{ fileBasenameNoExtension }}'", "${env:NAME}", "_base_: FILE"});
  expect_contains(message("lr: '{{_base_.optim.lr}}'\n"), {"c.yaml:1: lr has '{{_base_.optim.lr}}'"});
  expect_contains(message("l: ['{{$HOST:none}}']\n"), {"l.0 has '{{$HOST:none}}'"});
  expect_contains(message("work_dir: {{ fileDirname }}\n"), {"c.yaml:1", "{{...}} is not filled in", "${env:NAME}"});
  EXPECT_EQ(message("pattern: 'a{{2}} {{ name }} {{'\n"), "");  // text like any other
}

TEST(Config, UnknownKeysInListsAndLaterParts) {
  const ConfigNode c = ConfigNode::parse_text("l: [{a: 1, b: 2}]\nlater: {x: 1}\n", "c.yaml");
  for (const ConfigNode& item : c.list("l")) item.read<int64_t>("a", 0);
  c.child("later").check_later();
  expect_contains(config_error_of([&] { c.reject_unknown(); }), {"c.yaml:1: unknown key 'b' in l.0"});
  c.list("l")[0].read<int64_t>("b", 0);
  c.reject_unknown();
  expect_contains(config_error_of([&] { c.child("later").reject_unknown(); }), {"unknown key 'x' in later"});
}

TEST(Config, OverridesSetMakeAndAppend) {
  ConfigNode c = ConfigNode::parse_text("a: {b: 1}\nl: [{x: 1}]\nn: null\n", "c.yaml");
  for (const char* word : {"a.b=2", "l.0.x=3", "l.1={x: 4}", "n.deep.er=[1, 2]", "s=off", "gone=null", "eq=a=b"}) {
    c.override_with(word);
  }
  EXPECT_EQ(c.child("a").read<int64_t>("b", 0), 2);
  EXPECT_EQ(c.list("l").at(0).read<int64_t>("x", 0), 3);
  EXPECT_EQ(c.list("l").at(1).read<int64_t>("x", 0), 4);
  EXPECT_EQ(c.child("n").child("deep").read<std::vector<int64_t>>("er", {}).size(), 2U);
  EXPECT_EQ(c.read<std::string>("s", ""), "off");
  EXPECT_EQ(c.read<std::string>("eq", ""), "a=b");
  EXPECT_TRUE(c.child("gone").is_null());
  c.reject_unknown();
}

TEST(Config, BadOverridesSayWhatToWrite) {
  ConfigNode c = ConfigNode::parse_text("a: 1\nl: [1]\n", "c.yaml");
  expect_contains(config_error_of([&] { c.override_with("novalue"); }), {"command line", "novalue", "key=value"});
  expect_contains(config_error_of([&] { c.override_with("=1"); }), {"key=value"});
  expect_contains(config_error_of([&] { c.override_with("a..b=1"); }), {"key=value"});
  expect_contains(config_error_of([&] { c.override_with("a.=1"); }), {"key=value"});
  expect_contains(config_error_of([&] { c.override_with("a.b=1"); }), {"a is the value 1", "a map"});
  expect_contains(config_error_of([&] { c.override_with("l.7=1"); }), {"l has 1 items", "'7'"});
  expect_contains(config_error_of([&] { c.override_with("a=[1, 2"); }), {"not YAML", "a=[1, 2"});
  c.override_with("typo=1");
  c.child("a");
  c.child("l");
  expect_contains(config_error_of([&] { c.reject_unknown(); }), {"command line: unknown key 'typo'"});
}

TEST(Config, BrokenYamlNamesLineAndColumn) {
  expect_contains(parse_error("a: 1\nb: [1, 2\nc: 3\n"), {"c.yaml:3", "not YAML"});
  expect_contains(parse_error("a: b: c\n"), {"c.yaml:1:5"});
  expect_contains(parse_error("a: 1\n\tb: 2\n"), {"c.yaml:2"});
  expect_contains(parse_error("a: *nope\n"), {"c.yaml:1"});
  expect_contains(parse_error("a: 'open\n"), {"c.yaml:"});
  expect_contains(parse_error(std::string("a: \0x\n", 7)), {"c.yaml:"});
  expect_contains(parse_error(std::string(100000, '[')), {"c.yaml:1", "nested too deeply"});
}

TEST(Config, StructureErrors) {
  expect_contains(parse_error(""), {"c.yaml:1", "empty"});
  expect_contains(parse_error("# only a comment\n"), {"empty"});
  expect_contains(parse_error("just words\n"), {"no map"});
  expect_contains(parse_error("- a\n- b\n"), {"no map"});
  expect_contains(parse_error("a: 1\nb: 2\na: 3\n"), {"c.yaml:3: a is given twice, first at c.yaml:1"});
  expect_contains(parse_error("x: {k: 1, k: 2}\n"), {"x.k is given twice"});
  expect_contains(parse_error("a: 1\n---\nb: 2\n"), {"2 YAML documents"});
  expect_contains(parse_error(",a: 1\nb: 'x\n"), {"c.yaml:"});  // yaml-cpp alone would find documents without end
  expect_contains(parse_error("? [a, b]\n: 1\n"), {"c.yaml:1", "no plain word"});
  expect_contains(parse_error("a: &a [*a]\n"), {"c.yaml:1", "refers to itself"});
  expect_contains(parse_error("a: &a {x: 1}\nb: {<<: *a}\n"), {"c.yaml:2", "merge key"});
  expect_contains(parse_error("a: !!python/object:os.system x\n"), {"c.yaml:1: a has the tag"});
  std::string laughs = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string n = std::to_string(i), last = "*a" + std::to_string(i - 1);
    laughs += "a" + n + ": &a" + n + " [";
    for (int k = 0; k < 10; ++k) laughs += last + (k < 9 ? ", " : "]\n");
  }
  expect_contains(parse_error(laughs), {"nested too deeply or refers"});
}

TEST(Config, UnreadableFiles) {
  expect_contains(config_error_of([] { ConfigNode::parse_file("/nonexistent/c.yaml"); }), {"/nonexistent/c.yaml"});
  expect_contains(config_error_of([] { ConfigNode::parse_file("/tmp"); }), {"cannot read '/tmp'"});
}

TEST(Config, DumpReadsBackAndNamesOrigins) {
  ConfigNode c = ConfigNode::parse_text(
      "a: {b: 1e-3, s: 'x: y', n: null}\nl: [{x: 1, y: [1, 2]}, {x: \"null\"}]\ne: {}\nv: [a b, 'c,d']\n", "c.yaml");
  c.override_with("a.c=7");
  c.child("a").read<std::string>("word", "two words");
  c.child("made").read<double>("ratio", 0.1);
  const std::string text = c.dump();
  expect_contains(
      text, {"b: 1e-3  # c.yaml:1", "c: 7  # command line", "word: two words  # default", "ratio: 0.1  # default"});
  const ConfigNode again = ConfigNode::parse_text(text, "again.yaml");
  EXPECT_EQ(again.child("a").read<std::string>("s", ""), "x: y");
  EXPECT_EQ(again.list("l").at(1).read<std::string>("x", ""), "null");
  EXPECT_EQ(again.list("l").at(0).read<std::vector<int64_t>>("y", {}).size(), 2U);
  EXPECT_EQ(again.read<std::vector<std::string>>("v", {}), (std::vector<std::string>{"a b", "c,d"}));
  EXPECT_TRUE(again.child("a").child("n").is_null());
}

TEST(Config, LocatedAddsThePlace) {
  const ConfigNode c = ConfigNode::parse_text("x: 1\ng:\n  y: 2\n", "c.yaml");
  const auto bad = [] { throw ConfigError("[Options] y is 2, expected 3"); };
  expect_contains(config_error_of([&] { c.child("g").located(bad); }), {"c.yaml:2: g: [Options] y is 2"});
}

TEST(Nearest, FindsTheClosestWord) {
  EXPECT_EQ(nearest("lerning_rate", {"momentum", "learning_rate", "lr"}), "learning_rate");
  EXPECT_EQ(nearest("ADAMW", {"SGD", "AdamW"}), "AdamW");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(nearest("Acc", {"IoU", "Accuracy"}), "Accuracy");    // begins with it
  EXPECT_EQ(nearest("mIoU", {"loss", "val/mIoU"}), "val/mIoU");  // ends with it
  EXPECT_EQ(nearest("max", {"greater", "less"}), "");            // another word
  EXPECT_EQ(nearest("lrr", {"lr"}), "lr");
  EXPECT_EQ(nearest("Halfs", {"Halves"}), "Halves");
  EXPECT_EQ(nearest("fast", {"last"}), "last");
  EXPECT_EQ(nearest(std::string(1'000'000, 'a'), {"last", std::string(1'000'000, 'b')}), "");
  EXPECT_EQ(nearest("fast", {"lost"}), "");
}

TEST(Nearest, NamesComeNearestFirstAndOnce) {
  const std::vector<std::string> names = {"head", "backbone", "neck", "backbone", "backbone.norm"};
  EXPECT_EQ(nearest_names("bakcbone", names, 2), (std::vector<std::string>{"backbone", "backbone.norm"}));
  EXPECT_EQ(nearest_names("Head", names, 9).size(), 4U);
  EXPECT_TRUE(nearest_names("head", {}, 3).empty());
}

}  // namespace
}  // namespace duet
