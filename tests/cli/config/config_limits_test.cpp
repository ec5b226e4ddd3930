#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include "base/error.h"
#include "cli/config/config.h"
#include "cli/runs/run_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/peak_memory.h"
#include "tests/support/temp_dir.h"

// Configs that are made to take memory, or to have no end: a config that is run, and one in a run folder from
// elsewhere, which list, diff and report show.

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

TEST(ConfigLimits, TextsOfTooMuchAreRefusedBeforeMemoryIsTaken) {
  const TempDir folder;
  const std::string long_key = "? " + std::string(1 << 19, 'k') + "\n: [" + repeated("{x: 1}, ", 1000) + "]\n";
  for (const std::string& text : {laughs(30), std::string("a: 1\nb: &b {c: [*b]}\n"), std::string("a: &a [*a]\n"),
                                  "a: &a " + std::string(1'000'000, 'x') + "\nb: [" + repeated("*a, ", 20) + "*a]\n",
                                  "a: " + repeated("[", 64) + repeated("]", 64),
                                  "a: [" + repeated("0, ", 100'000) + "0]", "# " + std::string(2 << 20, 'x'),
                                  "a: " + repeated("[", 1'000'000), "a: " + repeated("[", 8'000'000), long_key}) {
    SCOPED_TRACE(text.substr(0, 60));
    const auto refused = [&] {
      expect_error<ConfigError>([&] { ConfigNode::parse_text(text, "c.yaml"); }, {"[Config] c.yaml", "too large"});
    };
    EXPECT_LT(peak_memory(refused), uint64_t{300} << 20);
    SavedConfig config;
    const std::string path = folder.write("config.yaml", text);
    EXPECT_LT(peak_memory([&] { config = read_saved_config(path); }), uint64_t{300} << 20);
    EXPECT_TRUE(config.values.empty());
    EXPECT_NE(config.problem, "");
  }
  for (const std::string& text :
       {std::string("a: &x [1, {b: 2}]\nc: [*x, *x]\n"), laughs(4), "a: " + repeated("[", 63) + repeated("]", 63)})
    EXPECT_NO_THROW(ConfigNode::parse_text(text, "c.yaml")) << text;
}

// The first lines say where values came from; as many as one likes may follow.
TEST(ConfigLimits, ASavedConfigKeepsFewLines) {
  const TempDir folder;
  const std::string path = folder.write("config.yaml", "a: 1  # command line\n" + std::string(1'000'000, '\n'));
  SavedConfig config;
  EXPECT_LT(peak_memory([&] { config = read_saved_config(path); }), uint64_t{300} << 20);
  ASSERT_EQ(config.values.size(), 1U) << config.problem;
  EXPECT_EQ(config.values[0].second.origin, "command line");
}

TEST(ConfigLimits, AFileIsARegularOneOfAMegabyteAtMost) {
  const TempDir folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::ofstream(folder / "huge").close();
  std::filesystem::resize_file(folder / "huge", uint64_t{1} << 40);
  using Case = std::pair<std::string, std::string>;
  for (const auto& [path, part] : {Case(folder / "pipe", "not a regular file"), Case("/dev/zero", "not a regular file"),
                                   Case(folder / "huge", "more than 1048576 bytes")}) {
    expect_error<ConfigError>([&] { ConfigNode::parse_file(path); }, {path, part, "expected a YAML file"});
    expect_error<ConfigError>([&] { ConfigNode::parse_text("_base_: " + path + "\n", folder / "c.yaml"); },
                              {"c.yaml:1", path, part});
    EXPECT_NE(read_saved_config(path).problem.find(part), std::string::npos);
  }
}

// Two files that each name the next twice would be read a thousand times.
TEST(ConfigLimits, BasesHaveAnEnd) {
  const TempDir folder;
  for (int i = 0; i < 12; ++i) {
    const std::string next = std::to_string(i + 1) + ".yaml";
    folder.write(std::to_string(i) + ".yaml", "_base_: [" + next + ", " + next + "]\n");
  }
  folder.write("12.yaml", "{}\n");
  folder.write("self.yaml", "x: 1\n_base_: self.yaml\n");
  for (const char* name : {"0.yaml", "self.yaml"}) {
    expect_error<ConfigError>([&] { ConfigNode::parse_file(folder / name); },
                              {"_base_", "64 other bases", "to itself"});
  }
}

}  // namespace
}  // namespace duet
