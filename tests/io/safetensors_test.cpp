#include "io/safetensors.h"
#include <cstring>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

std::string with_header(const std::string& json, const std::string& data, int64_t length = -1) {
  const uint64_t count = length < 0 ? json.size() : static_cast<uint64_t>(length);
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &count, 8);
  return bytes + json + data;
}

TEST(Safetensors, KeepsEveryTypeShapeAndBitInTheGivenOrder) {
  const StateDict odd = odd_state();
  const NamedTensors tensors(odd.tensors().begin(), odd.tensors().end());
  const TempDir folder;
  write_safetensors(folder / "a.safetensors", tensors, {{"who", "duet"}});
  const NamedTensors back = read_safetensors(folder / "a.safetensors");
  ASSERT_EQ(back.size(), tensors.size());
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].first, tensors[i].first);
    expect_same_tensor(back[i].first, back[i].second, tensors[i].second);
    EXPECT_TRUE(back[i].second.is_contiguous());
  }
}

TEST(Safetensors, WritesExactlyTheseBytes) {
  const NamedTensors tensors = {{"b", at::tensor({1, 2, 3}, at::kByte)}, {"x", at::tensor({1.F, -2.F}).view({1, 2})}};
  const SafetensorsImage image = encode_safetensors(tensors, {{"format", "pt"}});
  const std::string json =
      "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]},"
      "\"x\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}";
  const std::string padding(4, ' ');
  ASSERT_EQ((json + padding).size() % 8, 0u);
  const TempDir folder;
  write_safetensors(folder / "g", tensors, {{"format", "pt"}});
  const std::string data("\x00\x00\x80\x3f\x00\x00\x00\xc0\x01\x02\x03", 11);
  EXPECT_EQ(read_bytes(folder / "g"), with_header(json + padding, data));
  EXPECT_EQ(image.header, with_header(json + padding, ""));
  EXPECT_EQ(image.bytes, image.header.size() + 11);
  EXPECT_EQ(encode_safetensors({}).header, with_header("{}      ", ""));
}

TEST(Safetensors, RefusesWhatTheFormatCannotHold) {
  const at::Tensor one = at::ones({1});
  expect_error<DataError>([&] { encode_safetensors({{"a", one}, {"a", one}}); }, {"'a'", "taken"});
  expect_error<DataError>([&] { encode_safetensors({{"__metadata__", one}}); }, {"__metadata__"});
  expect_error<DataError>([&] { encode_safetensors({{"a", at::Tensor()}}); }, {"'a'", "undefined"});
  expect_error<DataError>([&] { encode_safetensors({{"c", one.to(at::kComplexDouble)}}); }, {"'c'", "view_as_real"});
  expect_error<DataError>([&] { encode_safetensors({{"s", one.to_sparse()}}); }, {"'s'", "to_dense"});
  expect_error<DataError>([&] { encode_safetensors({{"m", at::ones({1}, at::kMeta)}}); }, {"'m'", "meta"});
  expect_error<DataError>([&] { encode_safetensors({{"\xff", one}}); }, {"UTF-8"});
}

TEST(Safetensors, ReadsForeignBoolsAsTrueOrFalse) {
  const TempDir folder;
  const std::string json = R"({"b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  const NamedTensors back = read_safetensors(folder.write("b", with_header(json, std::string("\x00\x02\xff", 3))));
  EXPECT_EQ(tensor_bytes(back[0].second), std::string("\0\1\1", 3));
}

TEST(Safetensors, NamesWhatIsWrongWithAFile) {
  const TempDir folder;
  const std::string data = "12345678";
  const auto refuses = [&](const std::string& bytes, const std::string& part) {
    const std::string path = folder.write("bad", bytes);
    expect_error<DataError>([&] { read_safetensors(path); }, {path, part});
  };
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& range) {
    return "\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + range + "}";
  };
  const std::string good = entry("F32", "[2]", "[0,8]");
  EXPECT_NO_THROW(read_safetensors(folder.write("good", with_header("{" + good + "}", data))));
  refuses("", "0 bytes");
  refuses("1234567", "7 bytes");
  refuses(with_header("{}", "", 3), "more than the file holds");
  refuses(with_header("{}", "", INT64_MAX), "100 MB");
  refuses(with_header("", "", 0), "does not start with '{'");
  refuses(with_header(" {}", ""), "does not start with '{'");
  refuses(with_header("{\"a\":", ""), "not JSON");
  refuses(with_header("{" + std::string(100'000, '[') + "}", ""), "not JSON");
  refuses(with_header("{\"a\":{\"x\":" + std::string(100'000, '[') + "}", ""), "too deep");
  refuses(with_header("{" + good + "," + good + "}", data), "'a' twice");
  refuses(with_header(R"({"a":{"dtype":"F32","dtype":"F32"}})", data), "'dtype' twice");
  refuses(with_header(R"({"a":[1]})", data), "'a' has no dtype");
  refuses(with_header(R"({"__metadata__":{"a":1},)" + good + "}", data), "__metadata__");
  refuses(with_header("{" + entry("F33", "[2]", "[0,8]") + "}", data), "F33");
  refuses(with_header("{" + entry("F32", "[-2]", "[0,8]") + "}", data), "shape");
  refuses(with_header("{" + entry("F32", "[2.0]", "[0,8]") + "}", data), "shape");
  refuses(with_header("{" + entry("F32", "2", "[0,8]") + "}", data), "shape");
  refuses(with_header("{" + entry("F32", "[3]", "[0,8]") + "}", data), "span 8 bytes");
  refuses(with_header("{" + entry("F32", "[2]", "[0,8,9]") + "}", data), "data_offsets");
  refuses(with_header("{" + entry("F32", "[2]", "[8,0]") + "}", data), "data_offsets");
  refuses(with_header("{" + entry("F32", "[4]", "[0,16]") + "}", data), "within the 8 data bytes");
  refuses(with_header("{" + entry("F32", "[1]", "[0,4]") + "}", data), "the file has 8");
  refuses(with_header("{" + entry("F32", "[1]", "[4,8]") + "}", data), "expected 0");
  refuses(with_header("{" + good + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data), "overlaps");
  refuses(with_header("{" + entry("F32", "[0,4611686018427387904,4]", "[0,0]") + "}", ""), "beyond any memory");
  refuses(with_header("{" + entry("F32", "[18446744073709551615]", "[0,8]") + "}", data), "beyond any memory");
  refuses(with_header("{" + entry("U8", "[4294967296,4294967296]", "[0,0]") + "}", ""), "beyond any memory");
}

TEST(Safetensors, SurvivesAnyFlippedBitAndAnyTruncation) {
  const StateDict state = sample_state(3);
  const TempDir folder;
  write_safetensors(folder / "a", {state.tensors().begin(), state.tensors().end()}, {{"k", "v"}});
  const std::string bytes = read_bytes(folder / "a");
  for (size_t i = 0; i < bytes.size(); ++i) {
    expect_error<DataError>([&] { read_safetensors(folder.write("cut", bytes.substr(0, i))); }, {"cut"});
    for (const char mask : {'\x01', '\x02', '\x10', '\x80'}) {
      std::string flipped = bytes;
      flipped[i] ^= mask;
      try {
        read_safetensors(folder.write("flipped", flipped));  // fine where it is still a file of the format
      } catch (const DataError&) {
      }
    }
  }
  expect_error<DataError>([&] { read_safetensors(folder.write("long", bytes + "x")); }, {"long"});
}

TEST(Safetensors, NamesPathAndReasonIfAFileCannotBeReadOrWritten) {
  const TempDir folder;
  const at::Tensor one = at::ones({1});
  expect_error<DataError>([&] { read_safetensors(folder / "none"); }, {folder / "none", "No such file"});
  expect_error<DataError>([&] { read_safetensors(folder.path()); }, {"Is a directory"});
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error<DataError>([&] { read_safetensors(folder / "pipe"); }, {"not a regular file"});
  const std::string under_file = folder.write("file", "x") + "/a";
  expect_error<DataError>([&] { write_safetensors(under_file, {{"a", one}}); }, {under_file, "Not a directory"});
}

}  // namespace
}  // namespace duet
