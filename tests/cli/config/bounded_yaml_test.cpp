#include "cli/config/bounded_yaml.h"
#include <string>
#include <gtest/gtest.h>
#include "cli/runs/saved_config.h"
#include "cli/runs/text_columns.h"
#include "tests/support/expect_error.h"
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
    load_yaml(text);
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
  EXPECT_EQ(line_of_refusal("# " + std::string(17 << 20, 'x')), 1);
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

TEST(TextColumns, AlignWhatIsShown) {
  EXPECT_EQ(text_columns({{"a\x1b", "b"}, {"größe", "c"}}), "a\\x1b  b\ngröße  c\n");
}

}  // namespace
}  // namespace duet
