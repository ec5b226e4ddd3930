#include "cli/config/config.h"
#include <functional>
#include <tuple>
#include <gtest/gtest.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using Words = std::vector<std::string>;

ConfigNode tree_of(const std::string& text) { return ConfigNode::parse_text(text, "c.yaml"); }

TEST(Config, ReadsEveryType) {
  const ConfigNode c = tree_of(
      "flag: off\nbig: 7\nlr: 1e-3\ninf: .inf\nquoted: '5'\nints: [1, 2]\nnumbers: [0.9, 1]\nwords: [a, 'b']\n"
      "size: 2 GiB\n");
  EXPECT_FALSE(c.read<bool>("flag", true));
  EXPECT_EQ(c.read<std::string>("flag", ""), "off");
  EXPECT_EQ(c.read<int64_t>("big", 0), 7);
  EXPECT_EQ(c.read<double>("big", 0), 7.0);
  EXPECT_EQ(c.read<double>("lr", 0), 1e-3);
  EXPECT_GT(c.read<double>("inf", 0), 1e300);
  EXPECT_EQ(c.read<std::string>("quoted", ""), "5");
  EXPECT_EQ(c.read<std::vector<int64_t>>("ints", {}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(c.read<std::vector<double>>("numbers", {}), (std::vector<double>{0.9, 1}));
  EXPECT_EQ(c.read<Words>("words", {}), (Words{"a", "b"}));
  EXPECT_EQ(c.read_bytes("size", 0), int64_t{2} << 30);
  EXPECT_EQ(c.read_bytes("none", 12), 12);
  c.reject_unknown();
}

TEST(Config, AbsentAndNullGiveTheDefault) {
  const ConfigNode c = tree_of("a: null\nb: ~\nc:\n");
  for (const char* key : {"a", "b", "c", "d"}) {
    EXPECT_EQ(c.read<int64_t>(key, 5), 5) << key;
    EXPECT_FALSE(c.find<double>(key)) << key;
  }
  EXPECT_TRUE(c.child("a").is_null());
  EXPECT_FALSE(c.child("nowhere").exists());
  EXPECT_EQ(c.child("nowhere").child("deeper").read<std::string>("x", "y"), "y");
  EXPECT_TRUE(c.list("a").empty());
}

// Text stands in quotes, numbers do not.
TEST(Config, ErrorsNameLinePathValueAndWhatIsExpected) {
  const ConfigNode c = tree_of(
      "x: 1\nsub:\n  q: '1'\n  m: {}\n  l: [1, b]\nn: 0\np: +1.5\nmode: grahp\nsize: -1 MB\noff: off\nempty: ''\n"
      "none: null\n");
  const ConfigNode sub = c.child("sub");
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {[&] { sub.read<int64_t>("q", 0); }, "3: sub.q is '1', expected an integer"},
      {[&] { sub.read<int64_t>("m", 0); }, "4: sub.m is a map, expected an integer"},
      {[&] { sub.read<double>("l", 0); }, "5: sub.l is a list of 2, expected a number"},
      {[&] { c.child("x").child("y"); }, "1: x is 1, expected a map of 'key: value', such as {type: ...}"},
      {[&] { c.list("x"); }, "1: x is 1, expected a list, such as [{type: ...}]"},
      {[&] { c.read_int("n", 1, 1); }, "6: n is 0, expected an integer >= 1"},
      {[&] { c.read_int("n", 1, 1, 5); }, "6: n is 0, expected an integer from 1 to 5"},
      {[&] { c.read_number("p", 0, 0, 1); }, "7: p is +1.5, expected a number in [0, 1]"},
      {[&] { c.read_number("n", 1, above(0)); }, "6: n is 0, expected a number > 0"},
      {[&] { c.read_number("n", 1, 0.1); }, "6: n is 0, expected a number >= 0.1 or inf"},
      {[&] { c.read_choice("mode", "eager", {"eager", "graph"}); },
       "8: mode is 'grahp', expected eager, graph; did you mean 'graph'?"},
      {[&] { c.read_bytes("size", 0); }, "9: size is '-1 MB', expected bytes such as 1000000, 512 MiB or 2 GiB"},
      {[&] { c.read<double>("off", 0); }, "10: off is 'off', expected a number"},
      {[&] { c.read<bool>("empty", true); }, "11: empty is '', expected true or false"},
      {[&] { c.need<int64_t>("none"); }, "12: none is missing; add it"},
      {[&] { sub.located([] { throw ConfigError("[Options] y is 2"); }); }, "2: sub: [Options] y is 2"}};
  for (const auto& [read, message] : cases) EXPECT_EQ(config_error_of(read), "[Config] c.yaml:" + message);
}

TEST(Config, UnknownKeysInListsAndLaterParts) {
  const ConfigNode c = tree_of("l: [{a: 1, b: 2}]\nlater: {x: 1}\n");
  for (const ConfigNode& item : c.list("l")) item.read<int64_t>("a", 0);
  c.child("later").check_later();
  expect_contains(config_error_of([&] { c.reject_unknown(); }), {"c.yaml:1: unknown key 'b' in l.0; known: a"});
  c.list("l")[0].read<int64_t>("b", 0);
  c.reject_unknown();
  expect_contains(config_error_of([&] { c.child("later").reject_unknown(); }), {"unknown key 'x' in later"});
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
      {"a: !mine x\n", "c.yaml:1: a has the tag '!mine'"},
      {"lr: '{{ _base_.lr }}'\n", "c.yaml:1: lr has '{{ _base_.lr }}', of which"},
      {"root: 'x{{{{ fileDirname }}/a'\n", "c.yaml:1: root has"},
      {"root: '{{$HOME:/x}}'\n", "write ${env:NAME,default}"},
      {"work_dir: {{ fileDirname }}\n", "{{...}} is not filled in: write ${env:NAME}"}};
  for (const auto& [text, message] : cases) expect_contains(config_error_of([&] { tree_of(text); }), {message});
  EXPECT_EQ(tree_of("a: !!str 1\nb: !!int '2'\n").read<std::string>("a", ""), "1");
}

TEST(ConfigOverride, SetsMakesAppendsAndDeletes) {
  ConfigNode c = tree_of("a: {b: 1, x: 1}\nl: [{x: 1}, {n: 1}, {n: 2}]\nn: null\nm: {x: 1}\nkeys: {a.b: {x: 1}}\n");
  for (const char* word : {"a.b=2", "l.0.x=3", "l.3={x: 4}", "n.deep.er=[1, 2]", "s=off", "gone=null", "eq=a=b", "~a.x",
                           "~l.1", "m._delete_=true", "m.z=3", "keys.'a.b'.x=2", "keys.\"c.d\"={x: 3}"})
    c.override_with(word);
  EXPECT_EQ(c.dump(), R"(a:  # c.yaml:1
  b: 2  # command line
l:  # c.yaml:2
  - x: 3  # command line
  - n: 2  # c.yaml:2
  - x: 4  # command line
n:  # c.yaml:3
  deep:  # command line
    er: [1, 2]  # command line
m:  # command line
  z: 3  # command line
keys:  # c.yaml:5
  a.b:  # c.yaml:5
    x: 2  # command line
  c.d:  # command line
    x: 3  # command line
s: off  # command line
gone: null  # command line
eq: a=b  # command line
)");
  EXPECT_EQ(c.list("l").at(1).child("n").path(), "l.1.n");
}

TEST(ConfigOverride, MistakesSayWhatToWrite) {
  ConfigNode c = tree_of("a: {y: 1}\nl: [1]\nm: {x: 1}\n");
  for (const auto& [word, message] : {std::pair("novalue", "found 'novalue', expected key=value"),
                                      {"=1", "key=value"},
                                      {"a..b=1", "key=value"},
                                      {"a.=1", "key=value"},
                                      {"a.y.b=1", "a.y is the value 1, expected a map"},
                                      {"l.7=1", "l has 1 items, found index '7'"},
                                      {"a=[1, 2", "the value of 'a=[1, 2' is not YAML"},
                                      {"a.y=data/set #2", "quote it"},
                                      {"a.y=two\nlines", "is read as 'two lines'"},
                                      {"~a.yy", "there is no a.yy to delete; known: y; did you mean 'y'?"},
                                      {"~b.c", "there is no b to delete"},
                                      {"~", "expected key=value"},
                                      {"~a..y", "expected key=value"},
                                      {"keys.'a.b=2", "expected key=value"},
                                      {"_delete_=true", "expected key=value"},
                                      {"m._delete_=false", "expected key=value"},
                                      {"m._delete_=3", "m._delete_ is 3, expected true or false"},
                                      {"_base_=x.yaml", "_base_ in a file only"}})
    expect_contains(config_error_of([&] { c.override_with(word); }), {"command line: ", message});
}

// config_round_trip_test.cpp shows that all of it reads back.
TEST(Config, DumpNamesOriginsAndDefaults) {
  const ConfigNode c = tree_of("a: {b: 1e-3, n: null}\n");
  c.child("a").read<std::string>("word", "two words");
  c.child("made").read<double>("ratio", 0.1);
  c.child("made").read<std::vector<double>>("ends", {1, std::numeric_limits<double>::infinity()});
  EXPECT_EQ(c.dump(),
            "a:  # c.yaml:1\n  b: 1e-3  # c.yaml:1\n  n: null  # c.yaml:1\n  word: two words  # default\nmade:\n"
            "  ratio: 0.1  # default\n  ends: [1, .inf]  # default\n");
}

TEST(Config, AMissingKeyNamesTheUnknownOneThatLooksLikeIt) {
  for (const auto& [text, key, part] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"a: 1\nmodle: x\n", "model", "c.yaml:2: found key 'modle', but model is missing; did you mean 'model'?"},
           {"Path: x\n", "path", "found key 'Path'"},
           {"data: x\ntrainer: y\n", "model", "model is missing; add it"},
           {"known: x\n", "know", "know is missing; add it"}}) {  // that one has its own use
    const ConfigNode c = ConfigNode::parse_text(text, "c.yaml");
    c.child("known");
    expect_contains(config_error_of([&] { c.need<std::string>(key); }), {part});
  }
}

TEST(Nearest, FindsTheClosestWord) {
  const std::string long_word(1'000'000, 'a');
  for (const auto& [word, known, found] : std::vector<std::tuple<std::string, Words, std::string>>{
           {"lerning_rate", {"momentum", "learning_rate", "lr"}, "learning_rate"},
           {"ADAMW", {"SGD", "AdamW"}, "AdamW"},
           {"Acc", {"IoU", "Accuracy"}, "Accuracy"},    // begins with it
           {"mIoU", {"loss", "val/mIoU"}, "val/mIoU"},  // ends with it
           {"max", {"greater", "less"}, ""},            // another word
           {"fast", {"lost"}, ""},
           {"fast", {"last"}, "last"},
           {long_word, {"last", std::string(1'000'000, 'b')}, ""},
           {"x", {}, ""}})
    EXPECT_EQ(nearest(word, known), found) << word.substr(0, 20);
}

}  // namespace
}  // namespace duet
