#include "cli/config/bounded_yaml.h"
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include "base/error.h"
#include "cli/config/config.h"
#include "cli/runs/saved_config.h"
#include "cli/runs/text_columns.h"
#include "tests/support/expect_error.h"
#include "tests/support/peak_memory.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// Lists of eight of the list before, so many times.
std::string laughs(int lines) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < lines; ++i) {
    const std::string n = std::to_string(i), last = "*a" + std::to_string(i - 1);
    text += "a" + n + ": &a" + n + " [" + repeated(last + ", ", 7) + last + "]\n";
  }
  return text;
}

int line_of_refusal(const std::string& text) {
  try {
    inspect_yaml(text);
    return -1;
  } catch (const YamlTooLarge& error) {
    return error.mark.line + 1;
  }
}

TEST(BoundedYaml, FollowsAliasesBeforeAnythingIsBuilt) {
  EXPECT_EQ(line_of_refusal("a: &x [1, {b: 2}]\nc: [*x, *x]\n"), -1);
  EXPECT_EQ(line_of_refusal(laughs(4)), -1);
  EXPECT_EQ(line_of_refusal(laughs(30)), 6) << "8 to the sixth";
  EXPECT_EQ(line_of_refusal("a: 1\nb: &b {c: [*b]}\n"), 2) << "a part of itself";
  EXPECT_EQ(line_of_refusal("a: &a " + std::string(1'000'000, 'x') + "\nb: [" + repeated("*a, ", 20) + "*a]\n"), 2);
}

TEST(BoundedYaml, LimitsDepthCountAndText) {
  EXPECT_EQ(line_of_refusal("a: " + repeated("[", 63) + repeated("]", 63)), -1);
  EXPECT_EQ(line_of_refusal("a: " + repeated("[", 64) + repeated("]", 64)), 1);
  EXPECT_EQ(line_of_refusal("a: [" + repeated("0, ", 100'000) + "0]"), 1);
  EXPECT_EQ(line_of_refusal("# " + std::string(2 << 20, 'x')), 1);
}

// The parser takes each for what may be a key, and keeps all of them until it knows.
TEST(BoundedYaml, LimitsOpenBrackets) {
  for (const int many : {1'000'000, 8'000'000}) {
    EXPECT_LT(peak_memory([&] { EXPECT_EQ(line_of_refusal("a: " + repeated("[", many)), 1); }), uint64_t{300} << 20);
  }
}

// A run folder from elsewhere: its config is shown by list, diff and report.
TEST(SavedConfig, IsNotReadIfItIsEndless) {
  const TempDir folder;
  for (const std::string& text : {laughs(30), std::string("a: &a [*a]\n"), "a: " + repeated("[", 10'000)}) {
    const SavedConfig config = read_saved_config(folder.write("config.yaml", text));
    EXPECT_TRUE(config.values.empty());
    EXPECT_NE(config.problem, "");
  }
}

// Each value holds its path: a long key would stand there as often as it has values below.
TEST(SavedConfig, HasNoRoomForALongKeyOverManyValues) {
  const std::string keys = "? " + std::string(1 << 19, 'k') + "\n: [" + repeated("{x: 1}, ", 1000) + "]\n";
  const TempDir folder;
  const std::string path = folder.write("config.yaml", keys);
  SavedConfig config;
  EXPECT_LT(peak_memory([&] { config = read_saved_config(path); }), uint64_t{300} << 20);
  EXPECT_TRUE(config.values.empty());
  expect_contains(config.problem, {"bytes of their paths"});
  expect_error<ConfigError>([&] { ConfigNode::parse_text(keys, "c.yaml"); }, {"c.yaml:2", "bytes of their paths"});
}

// The first lines say where values came from; as many as one likes may follow.
TEST(SavedConfig, KeepsFewLines) {
  const TempDir folder;
  const std::string path = folder.write("config.yaml", "a: 1  # command line\n" + std::string(1'000'000, '\n'));
  SavedConfig config;
  EXPECT_LT(peak_memory([&] { config = read_saved_config(path); }), uint64_t{300} << 20);
  ASSERT_EQ(config.values.size(), 1U) << config.problem;
  EXPECT_EQ(config.values[0].second.origin, "command line");
}

TEST(ConfigFile, IsARegularFileOfAMegabyteAtMost) {
  const TempDir folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::ofstream(folder / "huge").close();
  std::filesystem::resize_file(folder / "huge", uint64_t{1} << 40);
  using Case = std::pair<std::string, std::string>;
  for (const Case& given : {Case(folder / "pipe", "not a regular file"), Case("/dev/zero", "not a regular file"),
                            Case(folder / "huge", "more than 1048576 bytes")}) {
    expect_error<ConfigError>([&] { ConfigNode::parse_file(given.first); },
                              {given.first, given.second, "expected a YAML file"});
    const std::string text = "_base_: " + given.first + "\n";
    expect_error<ConfigError>([&] { ConfigNode::parse_text(text, folder / "c.yaml"); },
                              {"c.yaml:1", given.first, given.second});
    EXPECT_NE(read_saved_config(given.first).problem.find(given.second), std::string::npos);
  }
}

// A regular expression would need a stack as deep as the text is long.
TEST(ConfigFile, LooksForVariablesInLongTexts) {
  const std::string many(900'000, 'a'), spaces(900'000, ' ');
  const auto parse = [](const std::string& text) { ConfigNode::parse_text("a: \"" + text + "\"\n", "c.yaml"); };
  for (const std::string& text : {"{{ $" + many, "{{" + spaces, "{{ _base_." + many, repeated("{{", 300'000)})
    parse(text);
  expect_error<ConfigError>([&] { parse(many + "{{ {{ fileDirname }}"); }, {"c.yaml:1", "has '{{ fileDirname }}'"});
}

// Two files that each name the next twice would be read a thousand times.
TEST(ConfigFile, HasNoEndlessBases) {
  const TempDir folder;
  for (int i = 0; i < 12; ++i) {
    const std::string next = std::to_string(i + 1) + ".yaml";
    folder.write(std::to_string(i) + ".yaml", "_base_: [" + next + ", " + next + "]\n");
  }
  folder.write("12.yaml", "{}\n");
  expect_error<ConfigError>([&] { ConfigNode::parse_file(folder / "0.yaml"); }, {"_base_", "64 files that are bases"});
}

TEST(TextColumns, AlignWhatIsShown) {
  EXPECT_EQ(text_columns({{"a\x1b", "b"}, {"größe", "c"}}), "a\\x1b  b\ngröße  c\n");
}

}  // namespace
}  // namespace duet
