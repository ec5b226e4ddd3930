#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/config.h"
#include "tests/support/expect_error.h"
#include "tests/support/scoped_variable.h"
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
  const std::string absolute = std::filesystem::absolute("_base_/model.yaml").string();
  write("exp/c.yaml", "_base_: [../_base_/data/d.yaml, " + absolute + "]\nmode: graph\nmodel: {width: 3}\n");
  const ConfigNode c = ConfigNode::parse_file("exp/c.yaml");
  EXPECT_EQ(c.read<int64_t>("seed", 0), 7);
  EXPECT_EQ(c.child("seed").origin(), "_base_/root.yaml:1");
  EXPECT_EQ(c.read<std::string>("mode", ""), "graph");
  EXPECT_EQ(c.child("model").read<std::string>("type", ""), "A");
  EXPECT_EQ(c.child("model").read<int64_t>("width", 0), 3);
  EXPECT_EQ(c.child("model").path(), "model");
  EXPECT_EQ(c.child("data").read<int64_t>("n", 0), 1);
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
}

TEST_F(ConfigBase, BadBasesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> files = {{"base.yaml", "x: 1\nseed: 1\n"},
                                                                  {"other.yaml", "y: 1\nseed: 1\n"},
                                                                  {"broken.yaml", "a: [1\n"},
                                                                  {"sub/lost.yaml", "a: 1\n_base_: nowhere.yaml\n"}};
  for (const auto& [name, text] : files) write(name, text);
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {"_base_: {a: 1}", "c.yaml:1: _base_ is a map, expected a YAML file or a list of such"},
           {"_base_: null", "c.yaml:1: _base_ is null"},
           {"_base_: []\nm: {_base_: base.yaml}", "c.yaml:2: found m._base_"},  // no base is fine
           {"_base_: [base.yaml, [b]]", "c.yaml:1: _base_ is a list of 2"},
           {"_base_: ''", "c.yaml:1: _base_ is ''"},
           {"m: {_base_: base.yaml}", "c.yaml:1: found m._base_, expected _base_ at the top"},
           {"_delete_: true", "c.yaml:1: _delete_ stands at the top"},
           {"m: {_delete_: maybe}", "c.yaml:1: m._delete_ is 'maybe', expected true or false"},
           {"_base_: broken.yaml", "broken.yaml:2:1: this is not YAML"},
           {"_base_:\n  - base.yaml\n  - other.yaml\nseed: 2",
            "other.yaml:2: seed is also in another base, at base.yaml:2, expected every key in one of the bases of "
            "c.yaml:3"},
           {"_base_: [base.yaml, base.yaml]", "base.yaml:1: x is also in another base, at base.yaml:1"},
           {"_base_: sub/lost.yaml", "sub/lost.yaml:2: _base_ names 'sub/nowhere.yaml', which cannot be read"},
           {"_base_: sub", "c.yaml:1: _base_ names 'sub', which cannot be read"}}) {
    write("c.yaml", text + "\n");
    expect_contains(load_error("c.yaml"), {expected});
  }
}

TEST(ConfigEnvironment, AWholeValueIsReadAsAScalar) {
  const ScopedVariable lr("DUET_LR", "1e-2"), on("DUET_ON", "off"), none("DUET_NONE", "null"),
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
  const ScopedVariable token("DUET_TOKEN", "s3cr3t"), none("DUET_NONE", "null");
  ConfigNode c = ConfigNode::parse_text(
      "whole: ${env:DUET_TOKEN}\npart: 'https://u:${env:DUET_TOKEN}@host/$${x}'\nlist: [\"${env:DUET_TOKEN,x}\"]\n"
      "none: ${env:DUET_NONE}\nset: ${env:DUET_UNSET,text}\n",
      "c.yaml");
  c.override_with("map={key: \"${env:DUET_TOKEN}\"}");
  const std::string text = c.dump(), json = config_json(c);
  EXPECT_EQ(text.find("s3cr3t"), std::string::npos) << text;
  EXPECT_EQ(json.find("s3cr3t"), std::string::npos) << json;
  expect_contains(text, {"part: \"https://u:${env:DUET_TOKEN}@host/$${x}\"  # c.yaml:2, env DUET_TOKEN"});
  expect_contains(text, {"none: null  # c.yaml:4, env DUET_NONE", "set: text  # c.yaml:5, env DUET_UNSET unset"});
  expect_contains(config_json(c, Variables::kFilledIn), {R"("whole":"s3cr3t")"});
  const ConfigNode again = ConfigNode::parse_text(text, "again.yaml");
  for (const char* key : {"whole", "part"})
    EXPECT_EQ(again.read<std::string>(key, ""), c.read<std::string>(key, "")) << text;
  EXPECT_TRUE(again.child("none").is_null());
}

// A token may look like a number: what counts is what is read.
TEST(ConfigEnvironment, NumbersAreWrittenWhereAnOptionReadsNumbers) {
  const ScopedVariable pin("DUET_PIN", "123456"), size("DUET_SIZE", "2");
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

// A value, what is read of it as text or as the word null, and what the origin says of the environment.
TEST(ConfigEnvironment, DefaultsStandInForWhatIsNotSet) {
  const ScopedVariable set("DUET_SET", "5"), home("DUET_HOME", "/h"), empty("DUET_EMPTY", "");
  for (const auto& [value, text, origin] : std::vector<std::array<std::string, 3>>{
           {"${env:DUET_UNSET,3}", "3", "env DUET_UNSET unset"},
           {"${env:DUET_SET,3}", "5", "env DUET_SET"},
           {"${env:DUET_UNSET,null}", "null", "env DUET_UNSET unset"},
           {"${env:DUET_UNSET,}", "", "env DUET_UNSET unset"},
           {"${env:DUET_UNSET,'runs/a'}", "runs/a", "env DUET_UNSET unset"},
           {"x/${env:DUET_UNSET, \" y\" }", "x/ y", "env DUET_UNSET unset"},
           {"${env:DUET_EMPTY}", "", "env DUET_EMPTY"},
           {"x/${env:DUET_UNSET, y, z }/w", "x/y, z/w", "env DUET_UNSET unset"},
           {"${env:DUET_HOME}/run_${env:DUET_SET}", "/h/run_5", "env DUET_HOME, env DUET_SET"}}) {
    const ConfigNode c = ConfigNode::parse_text("a: " + value + "\n", "c.yaml");
    EXPECT_EQ(c.read<std::string>("a", "null"), text) << value;
    EXPECT_EQ(c.child("a").origin(), "c.yaml:1, " + origin) << value;
  }
  for (const auto& [value, shown] :
       {std::pair("1${env:DUET_SET}", "'15'"), {"${env:DUET_EMPTY}", "''"}, {"${env:DUET_UNSET,'4'}", "'4'"}}) {
    const ConfigNode c = ConfigNode::parse_text(std::string("a: ") + value + "\n", "c.yaml");
    expect_contains(config_error_of([&] { c.read<int64_t>("a", 0); }),
                    {std::string("a is ") + shown + ", expected an integer"});
  }
}

TEST(ConfigEnvironment, NothingElseIsExpanded) {
  const ScopedVariable value("DUET_VALUE", "${env:HOME} $HOME");
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
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"${env:DUET_UNSET}",
            "c.yaml:2: a.b asks for the environment variable DUET_UNSET, which is not set; set it, or give a default "
            "as in "
            "${env:DUET_UNSET,value}"},
           {"${work_dir}", "c.yaml:2: a.b has '${work_dir}', expected ${env:NAME}"},
           {"${env:}", "a.b has '${env:}'"},
           {"${env:1A,2}", "a.b has '${env:1A,2}'"},
           {"${env:HOME", "a.b has '${env:HOME', expected ${env:NAME}"},
           {"${env:DUET_UNSET,${env:HOME}}", "a.b has '${env:DUET_UNSET,${env:HOME}', expected"},
           {"[${env:HOME}]", "this is not YAML"},
           {"{x: ${env:HOME}}", "this is not YAML"}})
    expect_contains(failure(text), {message});
}

TEST(ConfigOverride, DeletesKeysAndItemsAndReadsTheEnvironment) {
  const ScopedVariable n("DUET_N", "4");
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
  c.override_with("e=${env:DUET_N}");
  EXPECT_EQ(c.read<int64_t>("e", 0), 4);
  EXPECT_EQ(c.child("e").origin(), "command line, env DUET_N");
  for (const auto& [word, message] : {std::pair("~a.yy", "there is no a.yy to delete; known: y; did you mean 'y'?"),
                                      {"~b.c", "there is no b to delete"},
                                      {"~", "expected key=value"},
                                      {"~a..y", "expected key=value"},
                                      {"_delete_=true", "expected key=value"},
                                      {"m._delete_=false", "expected key=value"},
                                      {"m._delete_=3", "m._delete_ is 3, expected true or false"},
                                      {"_base_=x.yaml", "_base_ in a file only"}})
    expect_contains(config_error_of([&] { c.override_with(word); }), {"command line: ", message});
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
