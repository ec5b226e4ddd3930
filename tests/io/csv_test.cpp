#include "io/csv.h"
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using Rows = std::vector<std::vector<std::string>>;

CsvTable parsed(const std::string& text, char separator = ',') { return parse_csv(text, "t.csv", separator); }

TEST(Csv, ReadsPlainAndQuotedFields) {
  const CsvTable table = parsed("a,b\n1, two \n\"x, \"\"y\"\"\nz\",\n");
  EXPECT_EQ(table.columns, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(table.rows, (Rows{{"1", "two"}, {"x, \"y\"\nz", ""}}));
  EXPECT_EQ(table.lines, (std::vector<std::size_t>{2, 3}));
}

TEST(Csv, TakesEveryLineEndAByteOrderMarkAndEmptyLines) {
  const Rows expected{{"1", "2"}, {"3", "4"}};
  for (const char* text : {"a,b\n1,2\n3,4", "a,b\r\n1,2\r\n3,4\r\n",
                           "\xEF\xBB\xBF"
                           "a,b\r1,2\r3,4\r",
                           "a,b\n\n1,2\n\n3,4\n\n"}) {
    EXPECT_EQ(parsed(text).rows, expected) << text;
  }
  EXPECT_EQ(parsed("a,b\n1, \"2, 3\" \n").rows, (Rows{{"1", "2, 3"}}));
  EXPECT_EQ(parsed("a;b\n1,5;2\n", ';').rows, (Rows{{"1,5", "2"}}));
}

TEST(Csv, NamesFileAndLineOfWhatIsWrong) {
  expect_error<DataError>([] { parsed(""); }, {"t.csv", "column names"});
  expect_error<DataError>([] { parsed("a,b\n1,2\n3\n"); }, {"t.csv:3", "found 1 fields, expected 2"});
  expect_error<DataError>([] { parsed("a;b\n1;2\n"); }, {"t.csv:1", "'a;b'", "separator"});
  expect_error<DataError>([] { parsed("a,a\n"); }, {"t.csv:1", "the columns a, a", "no two alike"});
  expect_error<DataError>([] { parsed("a,\n"); }, {"t.csv:1", "a name for each", "index=False"});
  expect_error<DataError>([] { parsed("a\n\"1\n\n2"); }, {"t.csv:2", "does not end"});
  expect_error<DataError>([] { parsed("a\n\"1\"2\n"); }, {"t.csv:2", "behind the quote"});
  expect_error<DataError>([] { parsed("first,second\n").column("secnd"); }, {"no column 'secnd'", "second"});
  expect_error<DataError>([] { read_csv("/nowhere/t.csv"); }, {"/nowhere/t.csv"});
}

}  // namespace
}  // namespace duet
