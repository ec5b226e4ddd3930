#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/config.h"
#include "tests/support/expect_error.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

// Bases and environment variables: what the resolved config holds, and where each value came from.

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
  write("base.yaml", "a: {x: 1, deep: {p: 1, q: 2}}\nl: [1, 2, 3]\nv: 1\nkept: yes\nclip: {max: 1}\noff: null\n");
  write("c.yaml", "_base_: base.yaml\na: {y: 2, deep: {q: 3}}\nl: [9]\nv: two\nclip: null\noff: {x: 1}\n");
  EXPECT_EQ(ConfigNode::parse_file("c.yaml").dump(), R"(a:  # c.yaml:2
  x: 1  # base.yaml:1
  deep:  # c.yaml:2
    p: 1  # base.yaml:1
    q: 3  # c.yaml:2
  y: 2  # c.yaml:2
l: [9]  # c.yaml:3
v: two  # c.yaml:4
kept: yes  # base.yaml:4
clip: null  # c.yaml:5
off:  # c.yaml:6
  x: 1  # c.yaml:6
)");
}

TEST_F(ConfigBase, SeveralBasesLevelsAndFolders) {
  write("_base_/data/d.yaml", "_base_: ../root.yaml\ndata: {n: 1}\n");
  write("_base_/root.yaml", "seed: 7\nmode: eager\n");
  write("_base_/model.yaml", "model: {type: A}\n");
  const std::string absolute = std::filesystem::absolute("_base_/model.yaml").string();
  write("exp/c.yaml", "_base_: [../_base_/data/d.yaml, " + absolute + "]\nmode: graph\nmodel: {width: 3}\n");
  EXPECT_EQ(ConfigNode::parse_file("exp/c.yaml").dump(), R"(seed: 7  # _base_/root.yaml:1
mode: graph  # exp/c.yaml:2
data:  # _base_/data/d.yaml:2
  n: 1  # _base_/data/d.yaml:2
model:  # exp/c.yaml:3
  type: A  # )" + absolute + ":1\n  width: 3  # exp/c.yaml:3\n");
}

TEST_F(ConfigBase, DeleteReplacesAMap) {
  write("base.yaml", "o: {type: A, betas: [1, 2], in: {x: 1}}\nl: 1\n");
  write("c.yaml", "_base_: base.yaml\no: {_delete_: true, type: B}\nl: {_delete_: true, y: 1}\n");
  EXPECT_EQ(ConfigNode::parse_file("c.yaml").dump(),
            "o:  # c.yaml:2\n  type: B  # c.yaml:2\nl:  # c.yaml:3\n  y: 1  # c.yaml:3\n");
  write("d.yaml", "_base_: base.yaml\no: {in: {_delete_: true, y: 2}, _delete_: false}\n");
  const ConfigNode deep = ConfigNode::parse_file("d.yaml").child("o");
  EXPECT_EQ(deep.keys(), (std::vector<std::string>{"type", "betas", "in"}));
  EXPECT_EQ(deep.child("in").keys(), std::vector<std::string>{"y"});
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
           {"_base_: base.yaml\nseed: {init: 1}",
            "c.yaml:2: seed is a map here and 1 in its base (base.yaml:2), expected a map in both to merge them; add "
            "_delete_: true"},
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
      "${env:DUET_WORD}\nl: [\"${env:DUET_LR}\", 2]\n",
      "c.yaml");
  EXPECT_EQ(c.child("in").read<double>("lr", 0), 0.01);
  EXPECT_FALSE(c.read<bool>("on", true));
  EXPECT_TRUE(c.child("none").is_null());
  EXPECT_EQ(c.read<std::string>("word", ""), "a b");
  EXPECT_EQ(c.read<std::vector<double>>("l", {}), (std::vector<double>{0.01, 2}));
  EXPECT_EQ(c.read<double>("lr", 0), 0.01);
  expect_contains(c.dump(),
                  {"lr: 1e-2  # c.yaml:1, env DUET_LR", "- 1e-2  # c.yaml:6, env DUET_LR\n  - 2  # c.yaml:6"});
}

// A saved config and what loggers get go to places where a token has no business. A number that an option has read as
// one is none, nor is a default; a token may look like a number: what counts is what is read.
TEST(ConfigEnvironment, ValuesOfVariablesAreNotWrittenButForNumbersThatWereRead) {
  const ScopedVariable token("DUET_TOKEN", "123456"), none("DUET_NONE", "null"), size("DUET_SIZE", "2");
  ConfigNode c = ConfigNode::parse_text(
      "whole: ${env:DUET_TOKEN}\npart: 'https://u:${env:DUET_TOKEN}@host/$${x}'\nlist: [\"${env:DUET_TOKEN,x}\"]\n"
      "none: ${env:DUET_NONE}\nset: ${env:DUET_UNSET,text}\nlr: ${env:DUET_SIZE}\nn: [\"${env:DUET_SIZE}\", 3]\n"
      "memory: ${env:DUET_SIZE}\n",
      "c.yaml");
  c.override_with("map={key: \"${env:DUET_TOKEN}\"}");
  EXPECT_EQ(c.read<std::string>("whole", ""), "123456");
  EXPECT_EQ(c.read<std::vector<std::string>>("list", {}), std::vector<std::string>{"123456"});
  EXPECT_EQ(c.read<double>("lr", 0), 2);
  EXPECT_EQ(c.read<std::vector<int64_t>>("n", {}), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(c.read_bytes("memory", 0), 2);
  const std::string text = c.dump(), json = config_json(c);
  for (const std::string& kept : {text, json}) EXPECT_EQ(kept.find("123456"), std::string::npos) << kept;
  expect_contains(text, {"whole: \"${env:DUET_TOKEN}\"", "lr: 2  #", "- 2  #", "memory: 2  #",
                         "part: \"https://u:${env:DUET_TOKEN}@host/$${x}\"  # c.yaml:2, env DUET_TOKEN",
                         "none: null  # c.yaml:4, env DUET_NONE", "set: text  # c.yaml:5, env DUET_UNSET unset"});
  expect_contains(json, {R"("lr":2)", R"("n":[2,3])"});
  expect_contains(config_json(c, Variables::kFilledIn), {R"("whole":123456)"});
  const ConfigNode again = ConfigNode::parse_text(text, "again.yaml");
  for (const char* key : {"whole", "part"})
    EXPECT_EQ(again.read<std::string>(key, ""), c.read<std::string>(key, "")) << text;
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

}  // namespace
}  // namespace duet
