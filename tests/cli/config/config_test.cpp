#include "cli/config/config.h"
#include <functional>
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
  const ConfigNode c = ConfigNode::parse_text("x: 1\nsub:\n  q: '1'\n  m: {}\n  l: [1, b]\n", "c.yaml");
  const ConfigNode sub = c.child("sub");
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {[&] { sub.read<int64_t>("q", 0); }, "3: sub.q is '1', expected an integer"},
      {[&] { sub.read<int64_t>("m", 0); }, "4: sub.m is a map, expected an integer"},
      {[&] { sub.read<double>("l", 0); }, "5: sub.l is a list of 2, expected a number"},
      {[&] { c.child("x").child("y"); }, "1: x is 1, expected a map of 'key: value', such as {type: ...}"},
      {[&] { c.list("x"); }, "1: x is 1, expected a list, such as [{type: ...}]"}};
  for (const auto& [read, message] : cases) EXPECT_EQ(config_error_of(read), "[Config] c.yaml:" + message);
}

TEST(Config, ErrorsPutTextInQuotesAndNumbersNot) {
  for (const auto& [value, shown] : {std::pair("'3'", "'3'"),
                                     {"''", "''"},
                                     {"null", "null"},
                                     {"[1, 2]", "a list of 2"},
                                     {"{a: 1}", "a map"},
                                     {"+1e-3", "+1e-3"},
                                     {"-.inf", "-.inf"},
                                     {"False", "False"},
                                     {"1.2.3", "'1.2.3'"},
                                     {"off", "'off'"}}) {
    const ConfigNode c = ConfigNode::parse_text(std::string("v: ") + value + "\n", "c.yaml");
    EXPECT_EQ(config_error_of([&] { c.fail_value("v", "x"); }),
              std::string("[Config] c.yaml:1: v is ") + shown + ", expected x");
  }
}

TEST(Config, RangesAndChoices) {
  const ConfigNode c =
      ConfigNode::parse_text("n: 0\np: 1.5\nmode: grahp\nsize: 2 GiB\nbad: 2 apples\nneg: -1 MB\n", "c.yaml");
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {[&] { c.read_int("n", 1, 1); }, "1: n is 0, expected an integer >= 1"},
      {[&] { c.read_int("n", 1, 1, 5); }, "1: n is 0, expected an integer from 1 to 5"},
      {[&] { c.read_number("p", 0, 0, 1); }, "2: p is 1.5, expected a number in [0, 1]"},
      {[&] { c.read_number("n", 1, above(0)); }, "1: n is 0, expected a number > 0"},
      {[&] { c.read_number("n", 1, 0.1); }, "1: n is 0, expected a number >= 0.1 or inf"},
      {[&] { c.read_choice("mode", "eager", {"eager", "graph"}); },
       "3: mode is 'grahp', expected eager, graph; did you mean 'graph'?"},
      {[&] { c.read_choice("bad", "", {"less", "greater"}); }, "5: bad is '2 apples', expected less, greater"},
      {[&] { c.read_bytes("bad", 0); }, "5: bad is '2 apples', expected bytes such as 1000000, 512 MiB or 2 GiB"},
      {[&] { c.read_bytes("neg", 0); }, "6: neg is '-1 MB', expected bytes such as 1000000, 512 MiB or 2 GiB"}};
  for (const auto& [read, message] : cases) EXPECT_EQ(config_error_of(read), "[Config] c.yaml:" + message);
  EXPECT_EQ(c.read_bytes("size", 0), int64_t{2} << 30);
  EXPECT_EQ(c.read_bytes("none", 12), 12);
}

TEST(Config, UnknownKeysInListsAndLaterParts) {
  const ConfigNode c = ConfigNode::parse_text("l: [{a: 1, b: 2}]\nlater: {x: 1}\n", "c.yaml");
  for (const ConfigNode& item : c.list("l")) item.read<int64_t>("a", 0);
  c.child("later").check_later();
  expect_contains(config_error_of([&] { c.reject_unknown(); }), {"c.yaml:1: unknown key 'b' in l.0; known: a"});
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
  const std::vector<std::pair<std::string, std::string>> cases = {{"novalue", "found 'novalue', expected key=value"},
                                                                  {"=1", "key=value"},
                                                                  {"a..b=1", "key=value"},
                                                                  {"a.=1", "key=value"},
                                                                  {"a.b=1", "a is the value 1, expected a map"},
                                                                  {"l.7=1", "l has 1 items, found index '7'"},
                                                                  {"a=[1, 2", "the value of 'a=[1, 2' is not YAML"}};
  for (const auto& [word, message] : cases)
    expect_contains(config_error_of([&] { c.override_with(word); }), {"command line: ", message});
}

// What is said of texts that are no config. config_limits_test.cpp has those that are too large.
TEST(Config, TextsThatAreNoConfigNameTheLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a: 1\nb: [1, 2\nc: 3\n", "c.yaml:3:2: this is not YAML"},
      {"a: b: c\n", "c.yaml:1:5"},
      {"a: 1\n\tb: 2\n", "c.yaml:2"},
      {"a: *nope\n", "c.yaml:1"},
      {"a: 'open\n", "c.yaml:"},
      {std::string("a: \0x\n", 7), "c.yaml:1:4: found the control character 0"},
      {"", "c.yaml:1: the config is empty"},
      {"just words\n", "no map"},
      {"a: 1\nb: 2\na: 3\n", "c.yaml:3: a is given twice, first at c.yaml:1"},
      {"a: 1\n---\nb: 2\n", "2 YAML documents"},
      {",a: 1\nb: 'x\n", "c.yaml:"},  // yaml-cpp alone would find documents without end
      {"? [a, b]\n: 1\n", "c.yaml:1: found a key that is no plain word"},
      {"a: &a {x: 1}\nb: {<<: *a}\n", "c.yaml:2: found the merge key"},
      {"a: !!python/object:os.system x\n", "c.yaml:1: a has the tag"},
      {"lr: '{{_base_.optim.lr}}'\n", "c.yaml:1: lr has '{{_base_.optim.lr}}', of which"},
      {"lr: '{{ _base_.lr }}'\n", "c.yaml:1: lr has '{{ _base_.lr }}', of which"},
      {"root: 'x{{{{ fileDirname }}/a'\n", "c.yaml:1: root has"},
      {"root: '{{$HOME:/x}}'\n", "write ${env:NAME,default}"},
      {"work_dir: {{ fileDirname }}\n", "{{...}} is not filled in: write ${env:NAME}"}};
  for (const auto& [text, message] : cases) expect_contains(parse_error(text), {message});
}

TEST(Config, UnreadableFiles) {
  expect_contains(config_error_of([] { ConfigNode::parse_file("/nonexistent/c.yaml"); }), {"/nonexistent/c.yaml"});
  expect_contains(config_error_of([] { ConfigNode::parse_file("/tmp"); }), {"cannot read '/tmp'"});
}

// config_round_trip_test.cpp shows that all of it reads back.
TEST(Config, DumpNamesOriginsAndDefaults) {
  ConfigNode c = ConfigNode::parse_text("a: {b: 1e-3, n: null}\n", "c.yaml");
  c.override_with("a.c=7");
  c.child("a").read<std::string>("word", "two words");
  c.child("made").read<double>("ratio", 0.1);
  c.child("made").read<std::vector<double>>("ends", {1, std::numeric_limits<double>::infinity()});
  EXPECT_EQ(c.dump(),
            "a:  # c.yaml:1\n  b: 1e-3  # c.yaml:1\n  n: null  # c.yaml:1\n  c: 7  # command line\n"
            "  word: two words  # default\nmade:\n  ratio: 0.1  # default\n  ends: [1, .inf]  # default\n");
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
