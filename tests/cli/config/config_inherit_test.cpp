#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/config.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

// Bases, environment variables and overrides: what the resolved config holds, and where each value came from.

namespace duet {
namespace {

// Files below a folder that is the working directory for the time of a test, so that origins are short.
class ConfigFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(folder_.path());
  }
  void TearDown() override { std::filesystem::current_path(before_); }

  static void write(const std::string& path, const std::string& text) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder);
    std::ofstream(path) << text;
  }
  static std::string load_error(const std::string& path) {
    return config_error_of([&] { ConfigNode::parse_file(path); });
  }

 private:
  TempDir folder_;
  std::filesystem::path before_;
};

class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~EnvironmentVariable() { unsetenv(name_); }

 private:
  const char* name_;
};

using ConfigBase = ConfigFiles;

TEST_F(ConfigBase, MapsMergeAndAllElseReplaces) {
  write("base.yaml", "a: {x: 1, deep: {p: 1, q: 2}}\nl: [1, 2, 3]\nv: 1\nkept: yes\n");
  write("c.yaml", "_base_: base.yaml\na: {y: 2, deep: {q: 3}}\nl: [9]\nv: two\nnew: 4\n");
  const ConfigNode c = ConfigNode::parse_file("c.yaml");
  EXPECT_EQ(c.keys(), (std::vector<std::string>{"a", "l", "v", "kept", "new"}));
  EXPECT_EQ(c.child("a").read<int64_t>("x", 0), 1);
  EXPECT_EQ(c.child("a").read<int64_t>("y", 0), 2);
  EXPECT_EQ(c.child("a").child("deep").read<int64_t>("p", 0), 1);
  EXPECT_EQ(c.child("a").child("deep").read<int64_t>("q", 0), 3);
  EXPECT_EQ(c.read<std::vector<int64_t>>("l", {}), std::vector<int64_t>{9});
  EXPECT_EQ(c.read<std::string>("v", ""), "two");
  EXPECT_EQ(c.child("a").child("x").origin(), "base.yaml:1");
  EXPECT_EQ(c.child("a").child("deep").child("q").origin(), "c.yaml:2");
  EXPECT_EQ(c.child("kept").origin(), "base.yaml:4");
  EXPECT_EQ(c.child("new").origin(), "c.yaml:5");
  expect_contains(c.dump(), {"x: 1  # base.yaml:1", "q: 3  # c.yaml:2", "l: [9]  # c.yaml:3"});
}

TEST_F(ConfigBase, SeveralBasesLevelsAndFolders) {
  write("_base_/data/d.yaml", "_base_: ../root.yaml\ndata: {n: 1}\n");
  write("_base_/model.yaml", "model: {type: A}\n");
  write("_base_/root.yaml", "seed: 7\nmode: eager\n");
  write("exp/c.yaml", "_base_: [../_base_/data/d.yaml, ../_base_/model.yaml]\nmode: graph\nmodel: {width: 3}\n");
  const ConfigNode c = ConfigNode::parse_file("exp/c.yaml");
  EXPECT_EQ(c.read<int64_t>("seed", 0), 7);
  EXPECT_EQ(c.child("seed").origin(), "_base_/root.yaml:1");
  EXPECT_EQ(c.read<std::string>("mode", ""), "graph");
  EXPECT_EQ(c.child("model").read<std::string>("type", ""), "A");
  EXPECT_EQ(c.child("model").read<int64_t>("width", 0), 3);
  EXPECT_EQ(c.child("model").path(), "model");
  EXPECT_EQ(c.child("data").read<int64_t>("n", 0), 1);
}

TEST_F(ConfigBase, AnAbsolutePathIsTakenAsItIs) {
  write("base.yaml", "a: 1\n");
  write("sub/c.yaml", "_base_: " + std::filesystem::absolute("base.yaml").string() + "\n");
  EXPECT_EQ(ConfigNode::parse_file("sub/c.yaml").read<int64_t>("a", 0), 1);
}

TEST_F(ConfigBase, DeleteReplacesAMap) {
  write("base.yaml", "o: {type: A, betas: [1, 2], in: {x: 1}}\nl: 1\n");
  write("c.yaml", "_base_: base.yaml\no: {_delete_: true, type: B}\nl: {_delete_: true, y: 1}\n");
  const ConfigNode c = ConfigNode::parse_file("c.yaml");
  EXPECT_EQ(c.child("o").keys(), std::vector<std::string>{"type"});
  EXPECT_EQ(c.child("l").keys(), std::vector<std::string>{"y"});
  write("d.yaml", "_base_: base.yaml\no: {in: {_delete_: true, y: 2}, _delete_: false}\n");
  EXPECT_EQ(ConfigNode::parse_file("d.yaml").child("o").keys(), (std::vector<std::string>{"type", "betas", "in"}));
  EXPECT_EQ(ConfigNode::parse_file("d.yaml").child("o").child("in").keys(), std::vector<std::string>{"y"});
}

TEST_F(ConfigBase, DeleteWithoutBaseDoesNothing) {
  write("c.yaml", "o: {_delete_: true, x: 1}\nl: [{_delete_: true, y: 1}]\n");
  const ConfigNode c = ConfigNode::parse_file("c.yaml");
  EXPECT_EQ(c.child("o").keys(), std::vector<std::string>{"x"});
  EXPECT_EQ(c.list("l").at(0).keys(), std::vector<std::string>{"y"});
}

TEST_F(ConfigBase, NullReplacesAMapAndIsReplacedByOne) {
  write("base.yaml", "clip: {max: 1}\noff: null\nkey: {a: 1}\n");
  write("c.yaml", "_base_: base.yaml\nclip: null\noff: {x: 1}\nkey: {a: null}\n");
  const ConfigNode c = ConfigNode::parse_file("c.yaml");
  EXPECT_TRUE(c.child("clip").is_null());
  EXPECT_EQ(c.child("off").read<int64_t>("x", 0), 1);
  EXPECT_TRUE(c.child("key").child("a").is_null());
}

TEST_F(ConfigBase, AMapOverAValueIsRefusedWithTheWayOut) {
  write("base.yaml", "scale: dynamic\nl: [1]\n");
  write("c.yaml", "_base_: base.yaml\nscale: {init: 1}\n");
  expect_contains(load_error("c.yaml"),
                  {"c.yaml:2: scale is a map", "'dynamic' in its base (base.yaml:1)", "_delete_: true"});
  write("d.yaml", "_base_: base.yaml\nl: {x: 1}\n");
  expect_contains(load_error("d.yaml"), {"d.yaml:2: l is a map", "a list of 1"});
}

TEST_F(ConfigBase, KeysOfAnotherTypeStayAndAreUnknown) {
  write("base.yaml", "o:\n  type: AdamW\n  lr: 1\n  betas: [0.9, 0.95]\n");
  write("c.yaml", "_base_: base.yaml\no:\n  type: SGD\n");
  const ConfigNode c = ConfigNode::parse_file("c.yaml");
  for (const char* key : {"type", "lr", "momentum"}) c.child("o").child(key);
  expect_contains(config_error_of([&] { c.reject_unknown(); }), {"base.yaml:4: unknown key 'betas' in o"});
}

TEST_F(ConfigBase, WhatTwoBasesBothHoldIsRefused) {
  write("a.yaml", "x: 1\nseed: 1\n");
  write("b.yaml", "y: 1\nseed: 1\n");
  write("c.yaml", "_base_:\n  - a.yaml\n  - b.yaml\nseed: 2\n");
  expect_contains(load_error("c.yaml"), {"b.yaml:2: seed is also in another base, at a.yaml:2", "bases of c.yaml:3"});
  write("twice.yaml", "_base_: [a.yaml, a.yaml]\n");
  expect_contains(load_error("twice.yaml"), {"a.yaml:1: x is also in another base, at a.yaml:1"});
}

TEST_F(ConfigBase, CirclesAndMissingFilesAreNamed) {
  write("a.yaml", "_base_: sub/b.yaml\n");
  write("sub/b.yaml", "x: 1\n_base_: ../a.yaml\n");
  expect_contains(load_error("a.yaml"), {"sub/b.yaml:2: _base_ leads back", "a.yaml -> sub/b.yaml -> a.yaml"});
  write("self.yaml", "_base_: self.yaml\n");
  expect_contains(load_error("self.yaml"), {"self.yaml:1: _base_ leads back", "self.yaml -> self.yaml"});
  write("sub/lost.yaml", "a: 1\n_base_: nowhere.yaml\n");
  expect_contains(load_error("sub/lost.yaml"), {"sub/lost.yaml:2: _base_ names 'sub/nowhere.yaml'", "relative to"});
  write("folder.yaml", "_base_: sub\n");
  expect_contains(load_error("folder.yaml"), {"folder.yaml:1: _base_ names 'sub', which cannot be read"});
}

TEST_F(ConfigBase, BadBasesAreNamed) {
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {"_base_: {a: 1}", "c.yaml:1: _base_ is a map, expected a file or a list of files"},
           {"_base_: null", "c.yaml:1: _base_ is null"},
           {"_base_: [a.yaml, [b]]", "c.yaml:1: _base_.1 is a list of 1"},
           {"_base_: ''", "c.yaml:1: _base_ is ''"},
           {"m: {_base_: a.yaml}", "c.yaml:1: found m._base_, expected _base_ at the top"},
           {"l: [{_base_: a.yaml}]", "c.yaml:1: found l.0._base_"},
           {"_delete_: true", "c.yaml:1: _delete_ stands at the top"},
           {"m: {_delete_: maybe}", "c.yaml:1: m._delete_ is 'maybe', expected true or false"},
           {"m: {_delete_: [true]}", "c.yaml:1: m._delete_ is a list of 1"}}) {
    write("c.yaml", text + "\n");
    expect_contains(load_error("c.yaml"), {expected});
  }
  write("broken.yaml", "a: [1\n");
  write("c.yaml", "_base_: broken.yaml\n");
  expect_contains(load_error("c.yaml"), {"broken.yaml:2", "this is not YAML"});
}

TEST_F(ConfigBase, OverridesComeLast) {
  write("base.yaml", "a: {x: 1}\nl: [{y: 1}]\n");
  write("c.yaml", "_base_: base.yaml\n");
  ConfigNode c = ConfigNode::parse_file("c.yaml");
  c.override_with("a.x=2");
  c.override_with("l.0.y=3");
  EXPECT_EQ(c.child("a").read<int64_t>("x", 0), 2);
  EXPECT_EQ(c.list("l").at(0).read<int64_t>("y", 0), 3);
  EXPECT_EQ(c.child("a").child("x").origin(), "command line");
}

TEST(ConfigEnvironment, AWholeValueIsReadAsAScalar) {
  const EnvironmentVariable lr("DUET_LR", "1e-2"), on("DUET_ON", "off"), none("DUET_NONE", "null"),
      word("DUET_WORD", " a b ");
  const ConfigNode c = ConfigNode::parse_text(
      "lr: ${env:DUET_LR}\nin: {lr: \"${oc.env:DUET_LR}\"}\non: ${env:DUET_ON}\nnone: ${env:DUET_NONE}\nword: "
      "${env:DUET_WORD}\n"
      "l: [\"${env:DUET_LR}\", 2]\n",
      "c.yaml");
  EXPECT_EQ(c.read<double>("lr", 0), 0.01);
  EXPECT_EQ(c.child("in").read<double>("lr", 0), 0.01);
  EXPECT_FALSE(c.read<bool>("on", true));
  EXPECT_TRUE(c.child("none").is_null());
  EXPECT_EQ(c.read<std::string>("word", ""), "a b");
  EXPECT_EQ(c.read<std::vector<double>>("l", {}), (std::vector<double>{0.01, 2}));
  EXPECT_EQ(c.child("lr").origin(), "c.yaml:1, env DUET_LR");
  expect_contains(c.dump(),
                  {"lr: 1e-2  # c.yaml:1, env DUET_LR", "- 1e-2  # c.yaml:6, env DUET_LR\n  - 2  # c.yaml:6"});
}

// A saved config and what loggers get go to places where a token has no business. A number that an option has read as
// one is none, nor is a default.
TEST(ConfigEnvironment, ValuesOfVariablesAreNotWritten) {
  const EnvironmentVariable token("DUET_TOKEN", "s3cr3t"), none("DUET_NONE", "null");
  ConfigNode c = ConfigNode::parse_text(
      "whole: ${env:DUET_TOKEN}\npart: 'https://u:${env:DUET_TOKEN}@host/$${x}'\nlist: [\"${env:DUET_TOKEN,x}\"]\n"
      "other: ${env:DUET_UNSET,${env:DUET_TOKEN}}\nnone: ${env:DUET_NONE}\nset: ${env:DUET_UNSET,text}\n",
      "c.yaml");
  c.override_with("map={key: \"${env:DUET_TOKEN}\"}");
  const std::string text = c.dump(), json = config_json(c);
  EXPECT_EQ(text.find("s3cr3t"), std::string::npos) << text;
  EXPECT_EQ(json.find("s3cr3t"), std::string::npos) << json;
  expect_contains(text, {"part: \"https://u:${env:DUET_TOKEN}@host/$${x}\"  # c.yaml:2, env DUET_TOKEN"});
  expect_contains(text, {"none: null  # c.yaml:5, env DUET_NONE", "set: text  # c.yaml:6, env DUET_UNSET unset"});
  expect_contains(json, {R"("other":"${env:DUET_UNSET,${env:DUET_TOKEN}}")"});
  expect_contains(config_json(c, Variables::kFilledIn), {R"("whole":"s3cr3t")"});
  const ConfigNode again = ConfigNode::parse_text(text, "again.yaml");
  for (const char* key : {"whole", "part", "other"})
    EXPECT_EQ(again.read<std::string>(key, ""), c.read<std::string>(key, "")) << text;
  EXPECT_TRUE(again.child("none").is_null());
}

// A token may look like a number: what counts is what is read.
TEST(ConfigEnvironment, NumbersAreWrittenWhereAnOptionReadsNumbers) {
  const EnvironmentVariable pin("DUET_PIN", "123456"), size("DUET_SIZE", "2");
  ConfigNode c = ConfigNode::parse_text(
      "token: ${env:DUET_PIN}\nunread: ${env:DUET_PIN}\nlr: ${env:DUET_SIZE}\nlist: [\"${env:DUET_SIZE}\", 3]\n"
      "words: [\"${env:DUET_PIN}\"]\nmemory: ${env:DUET_SIZE}\n",
      "c.yaml");
  EXPECT_EQ(c.read<std::string>("token", ""), "123456");
  EXPECT_EQ(c.read<double>("lr", 0), 2);
  EXPECT_EQ(c.read<std::vector<int64_t>>("list", {}), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(c.read<std::vector<std::string>>("words", {}), std::vector<std::string>{"123456"});
  EXPECT_EQ(c.read_bytes("memory", 0), 2);
  const std::string text = c.dump(), json = config_json(c);
  EXPECT_EQ(text.find("123456"), std::string::npos) << text;
  EXPECT_EQ(json.find("123456"), std::string::npos) << json;
  expect_contains(text, {"token: \"${env:DUET_PIN}\"", "lr: 2  #", "- 2  #", "memory: 2  #"});
  expect_contains(json, {R"("lr":2)", R"("list":[2,3])"});
}

TEST(ConfigEnvironment, InsideOtherTextItIsText) {
  const EnvironmentVariable rank("DUET_RANK", "3"), home("DUET_HOME", "/h");
  const ConfigNode c =
      ConfigNode::parse_text("dir: ${env:DUET_HOME}/run_${env:DUET_RANK}\nn: 1${env:DUET_RANK}\n", "c.yaml");
  EXPECT_EQ(c.read<std::string>("dir", ""), "/h/run_3");
  EXPECT_EQ(c.child("dir").origin(), "c.yaml:1, env DUET_HOME, env DUET_RANK");
  expect_contains(config_error_of([&] { c.read<int64_t>("n", 0); }), {"c.yaml:2, env DUET_RANK: n is '13'"});
}

TEST(ConfigEnvironment, DefaultsStandInForWhatIsNotSet) {
  const EnvironmentVariable set("DUET_SET", "5");
  const ConfigNode c = ConfigNode::parse_text(
      "a: ${env:DUET_UNSET,3}\nb: ${env:DUET_UNSET,'4'}\nc: ${env:DUET_SET,3}\nd: ${env:DUET_UNSET,${env:DUET_SET}}\n"
      "e: ${env:DUET_UNSET,null}\nf: ${env:DUET_UNSET,}\ng: x/${env:DUET_UNSET, y, z }/w\n",
      "c.yaml");
  EXPECT_EQ(c.read<int64_t>("a", 0), 3);
  EXPECT_EQ(c.child("a").origin(), "c.yaml:1, env DUET_UNSET unset");
  expect_contains(config_error_of([&] { c.read<int64_t>("b", 0); }), {"b is '4', expected an integer"});
  EXPECT_EQ(c.read<int64_t>("c", 0), 5);
  EXPECT_EQ(c.read<int64_t>("d", 0), 5);
  EXPECT_EQ(c.child("d").origin(), "c.yaml:4, env DUET_UNSET unset, env DUET_SET");
  EXPECT_TRUE(c.child("e").is_null());
  EXPECT_EQ(c.read<std::string>("f", "none"), "");
  EXPECT_EQ(c.read<std::string>("g", ""), "x/y, z/w");
}

TEST(ConfigEnvironment, AnEmptyVariableIsEmptyText) {
  const EnvironmentVariable empty("DUET_EMPTY", "");
  const ConfigNode c = ConfigNode::parse_text("a: ${env:DUET_EMPTY}\n", "c.yaml");
  EXPECT_EQ(c.read<std::string>("a", "default"), "");
  expect_contains(config_error_of([&] { c.read<int64_t>("a", 0); }), {"a is '', expected an integer"});
}

TEST(ConfigEnvironment, NothingElseIsExpanded) {
  const EnvironmentVariable value("DUET_VALUE", "${env:HOME} $HOME");
  const ConfigNode c = ConfigNode::parse_text(
      "home: $HOME\ntilde: ~/x\nescaped: $${env:HOME}\ntwice: $$\nkey: {'${env:HOME}': 1}\nvalue: ${env:DUET_VALUE}\n",
      "c.yaml");
  EXPECT_EQ(c.read<std::string>("home", ""), "$HOME");
  EXPECT_EQ(c.read<std::string>("tilde", ""), "~/x");
  EXPECT_EQ(c.read<std::string>("escaped", ""), "${env:HOME}");
  EXPECT_EQ(c.read<std::string>("twice", ""), "$$");
  EXPECT_EQ(c.child("key").keys(), std::vector<std::string>{"${env:HOME}"});
  EXPECT_EQ(c.read<std::string>("value", ""), "${env:HOME} $HOME");  // what a variable holds is not looked into
  const ConfigNode again = ConfigNode::parse_text(c.dump(), "again.yaml");
  for (const char* key : {"home", "tilde", "escaped", "twice", "value"}) {
    EXPECT_EQ(again.read<std::string>(key, ""), c.read<std::string>(key, "")) << c.dump();
  }
  EXPECT_EQ(again.child("key").keys(), c.child("key").keys());
}

TEST(ConfigEnvironment, MistakesNameThePlaceAndTheWayOut) {
  const auto failure = [](const std::string& text) {
    return config_error_of([&] { ConfigNode::parse_text("a:\n  b: " + text + "\n", "c.yaml"); });
  };
  expect_contains(failure("${env:DUET_UNSET}"),
                  {"c.yaml:2: a.b", "DUET_UNSET, which is not set", "${env:DUET_UNSET,value}"});
  expect_contains(failure("x${env:DUET_UNSET}y"), {"c.yaml:2: a.b", "DUET_UNSET, which is not set"});
  expect_contains(failure("${work_dir}"), {"c.yaml:2: a.b has '${work_dir}'", "${env:NAME}", "$${"});
  expect_contains(failure("${env:}"), {"a.b has '${env:}'"});
  expect_contains(failure("${env:A B}"), {"a.b has '${env:A B}'"});
  expect_contains(failure("${env:1A,2}"), {"a.b has '${env:1A,2}'"});
  expect_contains(failure("${en:A}"), {"a.b has '${en:A}'"});
  expect_contains(failure("${env:HOME"), {"without a closing }"});
  std::string deep;
  for (int i = 0; i < 50000; ++i) deep += "${env:DUET_UNSET,";
  expect_contains(failure(deep + std::string(50000, '}')), {"a.b nests"});
  expect_contains(failure("[${env:HOME}]"), {"c.yaml:", "this is not YAML", "quotes up to there"});
  expect_contains(failure("{x: ${env:HOME}}"), {"c.yaml:", "this is not YAML", "quotes up to there"});
}

TEST(ConfigOverride, ReadsEnvironmentToo) {
  const EnvironmentVariable n("DUET_N", "4");
  ConfigNode c = ConfigNode::parse_text("a: 1\n", "c.yaml");
  c.override_with("a=${env:DUET_N}");
  EXPECT_EQ(c.read<int64_t>("a", 0), 4);
  EXPECT_EQ(c.child("a").origin(), "command line, env DUET_N");
  expect_contains(config_error_of([&] { c.override_with("a=${env:DUET_UNSET}"); }),
                  {"command line: a asks", "DUET_UNSET"});
}

TEST(ConfigOverride, DeletesKeysAndItems) {
  ConfigNode c = ConfigNode::parse_text("a: {x: 1, y: 2}\nl: [{n: 0}, {n: 1}, {n: 2}]\nm: {x: 1}\n", "c.yaml");
  c.override_with("~a.x");
  c.override_with("~l.1");
  c.override_with("m._delete_=true");
  c.override_with("m.z=3");
  EXPECT_EQ(c.child("a").keys(), std::vector<std::string>{"y"});
  ASSERT_EQ(c.list("l").size(), 2U);
  EXPECT_EQ(c.list("l").at(1).read<int64_t>("n", 0), 2);
  EXPECT_EQ(c.list("l").at(1).child("n").path(), "l.1.n");
  EXPECT_EQ(c.child("m").keys(), std::vector<std::string>{"z"});
  expect_contains(config_error_of([&] { c.override_with("~a.yy"); }),
                  {"command line: there is no a.yy to delete", "did you mean 'y'"});
  expect_contains(config_error_of([&] { c.override_with("~b.c"); }), {"there is no b to delete"});
  expect_contains(config_error_of([&] { c.override_with("~l.7"); }), {"there is no l.7 to delete"});
  for (const char* bad : {"~", "~a.", "~a..y", "_delete_=true", "m._delete_=false"}) {
    expect_contains(config_error_of([&] { c.override_with(bad); }), {bad, "expected key=value"});
  }
  expect_contains(config_error_of([&] { c.override_with("m._delete_=3"); }),
                  {"m._delete_ is 3, expected true or false"});
  expect_contains(config_error_of([&] { c.override_with("_base_=x.yaml"); }), {"_base_ in a file only"});
}

TEST(ConfigOverride, QuotesKeepTheDotsOfAKey) {
  ConfigNode c = ConfigNode::parse_text("keys: {a.b: {x: 1}}\n", "c.yaml");
  c.override_with("keys.'a.b'.x=2");
  c.override_with("keys.\"c.d\"={x: 3}");
  EXPECT_EQ(c.child("keys").child("a.b").read<int64_t>("x", 0), 2);
  EXPECT_EQ(c.child("keys").child("c.d").read<int64_t>("x", 0), 3);
  expect_contains(config_error_of([&] { c.override_with("keys.'a.b=2"); }), {"expected key=value"});
}

}  // namespace
}  // namespace duet
