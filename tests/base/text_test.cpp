#include "base/detail/text.h"
#include <new>
#include <gtest/gtest.h>
#include "base/detail/concat_text.h"
#include "base/error.h"
#include "tests/support/memory_limit.h"

namespace duet {
namespace {

TEST(OneLine, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(one_line("conv1.weight, größe 漢字 🙂"), "conv1.weight, größe 漢字 🙂");
  EXPECT_EQ(one_line("a\nb\tc\r\x1b[31m\x7f"), R"(a\x0ab\x09c\x0d\x1b[31m\x7f)");
  EXPECT_EQ(one_line(std::string("\0", 1)), R"(\x00)");
  EXPECT_EQ(one_line("\xc2\x9b"
                     "31m"),
            R"(\x9b31m)")
      << "C1, which some terminals obey";
  EXPECT_EQ(one_line("\xe2\x80\xae"
                     "txt.exe"),
            R"(\u202etxt.exe)")
      << "turns what follows around";
  EXPECT_EQ(one_line("\xff\xc3(\xe2\x82"), R"(\xff\xc3(\xe2\x82)") << "no UTF-8";
  EXPECT_EQ(one_line("\xc0\x80\xed\xa0\x80"), R"(\xc0\x80\xed\xa0\x80)") << "too long, and a surrogate";
}

TEST(OneLine, LeavesOutWhatIsTooLong) {
  EXPECT_EQ(one_line(std::string(2000, 'x')), std::string(1000, 'x') + "...");
  EXPECT_EQ(one_line("12345", 5), "12345");
}

TEST(ConcatText, ThrowsWhereMemoryRunsOut) {
  if (!memory_can_be_limited()) GTEST_SKIP();
  const std::string large(std::size_t{256} << 20, 'x');
  const MemoryLimit limit(uint64_t{64} << 20);
  EXPECT_THROW(concat_text(large, ".weight"), std::bad_alloc) << "a text cut short names something else";
}

TEST(Error, EscapesWhatATerminalWouldObey) {
  EXPECT_STREQ(ConfigError("[A] found 'b\x1b[2J'\nand more").what(), "[A] found 'b\\x1b[2J'\nand more");
}

// What files hold stands in these: a line end in it would begin a line that looks like one of the log.
TEST(Error, OfDataIsOneLine) {
  EXPECT_STREQ(DataError("[A] found 'b\nerror: c'").what(), "[A] found 'b\\x0aerror: c'");
  EXPECT_EQ(std::string(DataError(std::string(5000, 'x')).what()).size(), 5000U);
}

TEST(HarmlessText, KeepsLinesOfAMessage) {
  EXPECT_EQ(escape_control_chars("a\n\tb\x1b[2J"), "a\n\tb\\x1b[2J");
  EXPECT_EQ(escape_control_chars(std::string(2000, 'x')).size(), 2000U);
}

}  // namespace
}  // namespace duet
