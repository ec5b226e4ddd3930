#include "io/idx.h"
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/idx_file.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

TEST(ReadIdx, ReadsEveryTypeAsThisMachineHasIt) {
  const TempDir dir;
  const auto read = [&](int type, const std::string& payload) {
    return read_idx(dir.write("file", idx_bytes(type, {2}, payload)));
  };
  const auto equal = [](const at::Tensor& a, const at::Tensor& b) {
    return a.scalar_type() == b.scalar_type() && at::equal(a, b);
  };
  EXPECT_TRUE(equal(read(0x08, std::string("\x01\xFF", 2)), at::tensor({1, 255}, at::kByte)));
  EXPECT_TRUE(equal(read(0x09, std::string("\x01\xFF", 2)), at::tensor({1, -1}, at::kChar)));
  EXPECT_TRUE(equal(read(0x0B, std::string("\x01\x02\xFF\xFE", 4)), at::tensor({258, -2}, at::kShort)));
  EXPECT_TRUE(equal(read(0x0C, std::string("\0\0\x01\x02\xFF\xFF\xFF\xFE", 8)), at::tensor({258, -2}, at::kInt)));
  EXPECT_TRUE(equal(read(0x0D, std::string("\x3F\x80\0\0\xC0\0\0\0", 8)), at::tensor({1.0, -2.0}, at::kFloat)));
  EXPECT_TRUE(equal(read(0x0E, std::string("\x3F\xF0\0\0\0\0\0\0\xC0\0\0\0\0\0\0\0", 16)),
                    at::tensor({1.0, -2.0}, at::kDouble)));
}

TEST(ReadIdx, NamesAMissingFile) {
  const TempDir dir;
  expect_error<DataError>([&] { read_idx(dir / "none"); }, {dir / "none", "No such file"});
  expect_error<DataError>([&] { read_idx(dir.path().string()); }, {"Is a directory"});
}

TEST(ReadIdx, RefusesEveryTruncation) {
  const TempDir dir;
  const std::string whole = idx_bytes(0x0B, {2, 2}, "abcdefgh");
  for (size_t size = 0; size < whole.size(); ++size) {
    expect_error<DataError>([&] { read_idx(dir.write("cut", whole.substr(0, size))); },
                            {dir / "cut", "found " + std::to_string(size) + " bytes", "truncated"});
  }
  expect_error<DataError>([&] { read_idx(dir.write("cut", whole + "x")); }, {"more than the 8 bytes"});
}

// Any changed byte is an error or, in gzip's own unchecked header fields, harmless.
TEST(ReadIdx, NeverReadsOtherValuesFromACorruptGzipFile) {
  const TempDir dir;
  std::string payload(300, '\0');
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * i % 251);
  write_gz(dir / "whole.gz", idx_bytes(0x08, {300}, payload));
  const at::Tensor expected = read_idx(dir / "whole.gz");
  const std::string whole = read_bytes(dir / "whole.gz");
  int errors = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x55);
    dir.write("bad.gz", bytes);
    try {
      EXPECT_TRUE(at::equal(read_idx(dir / "bad.gz"), expected)) << at;
    } catch (const DataError&) {
      ++errors;
    }
  }
  EXPECT_GE(errors, static_cast<int>(whole.size()) - 8);
}

TEST(ReadIdx, RefusesABadHeader) {
  const TempDir dir;
  const auto expect = [&](const std::string& bytes, const std::string& part) {
    expect_error<DataError>([&] { read_idx(dir.write("bad", bytes)); }, {dir / "bad", part});
  };
  expect(std::string("\x01\0\x08\x01\0\0\0\0", 8), "first bytes 1 0 8 1");
  expect(idx_bytes(0x0A, {1}, "a"), "first bytes 0 0 10 1");
  expect(idx_bytes(0x08, {}, "a"), "first bytes 0 0 8 0");
  expect(idx_bytes(0x08, std::vector<uint32_t>(200, 1), "a"), "dimensions");
}

TEST(ReadIdx, TakesNoMemoryForDimensionsThatTheFileCannotHold) {
  const TempDir dir;
  const uint32_t huge = 0xFFFFFFFF;
  const std::vector<std::vector<uint32_t>> shapes{{huge}, {huge, 1000}, {huge, huge, huge}, {huge, huge, huge, 0}};
  for (const std::vector<uint32_t>& shape : shapes) {
    const std::string bytes = idx_bytes(0x0E, shape, "abcdefgh");
    write_gz(dir / "bad.gz", bytes);
    expect_error<DataError>([&] { read_idx(dir.write("bad", bytes)); }, {dir / "bad"});
    expect_error<DataError>([&] { read_idx(dir / "bad.gz"); }, {dir / "bad.gz"});
  }
}

TEST(ReadIdx, ReadsPlainAndGzipUnderEitherName) {
  const TempDir dir;
  std::string payload;
  for (int i = 0; i < 24; ++i) payload.push_back(static_cast<char>(i));
  const std::string bytes = idx_bytes(0x08, {2, 3, 4}, payload);
  dir.write("plain", bytes);
  write_gz(dir / "packed.gz", bytes);
  const at::Tensor expected = at::arange(24, at::kByte).view({2, 3, 4});
  for (const char* name : {"plain", "plain.gz", "packed", "packed.gz"}) {
    EXPECT_TRUE(at::equal(read_idx(dir / name), expected)) << name;
  }
}

}  // namespace
}  // namespace duet
