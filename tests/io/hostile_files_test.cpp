#include <cstring>
#include <filesystem>
#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>
#include "base/error.h"
#include "data/file_dataset.h"
#include "io/bounded_json.h"
#include "io/csv.h"
#include "io/file_memory.h"
#include "io/idx.h"
#include "io/picture_size.h"
#include "io/png.h"
#include "io/pt_file.h"
#include "io/safetensors.h"
#include "io/zip_archive.h"
#include "tests/support/expect_error.h"
#include "tests/support/idx_file.h"
#include "tests/support/memory_limit.h"
#include "tests/support/peak_memory.h"
#include "tests/support/pt_files.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

constexpr const char* kFileMemory = "DUET_FILE_MEMORY";

std::string repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

// What MalformedFile says; empty: nothing is wrong.
template <class Call>
std::string malformed(const Call& call) {
  try {
    call();
    return "";
  } catch (const MalformedFile& error) {
    return error.what + "; " + error.way_out;
  }
}

TEST(FileMemory, GrowsWithTheFileAndIsRaisedByTheEnvironment) {
  EXPECT_EQ(file_memory(1000, 16), (uint64_t{256} << 20) + 16'000);
  EXPECT_EQ(file_memory(UINT64_MAX / 2, 16), UINT64_MAX);
  for (const auto& [text, bytes] : {std::pair("4KiB", 4096), {"0", 0}, {"12", 12}, {"2MiB", 2 << 20}}) {
    const ScopedVariable given(kFileMemory, text);
    EXPECT_EQ(file_memory(0, 16), static_cast<uint64_t>(bytes)) << text;
  }
  for (const char* text : {"", "much", "-1", "8GB", "1.5GiB", "9999999999TiB"}) {
    const ScopedVariable given(kFileMemory, text);
    expect_error<ConfigError>([] { file_memory(0, 16); }, {kFileMemory, "8GiB"});
  }
}

using Json = nlohmann::ordered_json;

TEST(BoundedJson, RefusesWhatIsDeepOrLargeOrTwice) {
  const auto parse = [](const std::string& text) {
    return malformed([&] { static_cast<void>(parse_json<Json>(text, "the manifest")); });
  };
  EXPECT_EQ(parse(R"({"a": [1, 2.5, "x", null, true], "b": {"a": {}}})"), "");
  expect_contains(parse(repeated("[", 65) + repeated("]", 65)), {"the manifest is nested too deep", "64 levels"});
  expect_contains(parse(repeated("[", 1'000'000)), {"nested too deep"});
  expect_contains(parse(repeated("{\"a\":", 1'000'000)), {"nested too deep"});
  expect_contains(parse(R"({"a": {"k\u0065y": 1, "key": 2}})"), {"the key 'key' twice"});
  const ScopedVariable floor(kFileMemory, "0");
  for (const char* item : {"0,", "\"\",", "[],", "{},"}) {
    expect_contains(parse("[" + repeated(item, 10'000) + "0]"), {"the manifest unfolds to more", kFileMemory});
  }
  std::string keys = "{";
  for (int i = 0; i < 20'001; ++i) keys += c10::str("\"k", i, "\":\"", std::string(32, 'v'), "\",");
  expect_contains(parse(keys + "\"z\":0}"), {"more than 20000 keys"});
}

std::string safetensors_bytes(const std::string& header) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

TEST(Safetensors, TakesMemoryInProportionToItsHeader) {
  const TempDir folder;
  const auto read = [&](const std::string& header) {
    const std::string path = folder.write("a.safetensors", safetensors_bytes(header));
    const MemoryLimit limit(uint64_t{160} << 20);
    return read_safetensors(path).size();
  };
  const std::string begin = R"({"a":{"dtype":"F32","shape":[)", end = R"(],"data_offsets":[0,0]}})";
  expect_error<DataError>([&] { read(begin + repeated("0,", 10'000'000) + "0" + end); }, {"unfolds to more"});
  expect_error<DataError>([&] { read(begin + repeated("[0],", 5'000'000) + "0" + end); }, {"unfolds to more"});
  expect_error<DataError>([&] { read(begin + repeated("0,", 65) + "0" + end); }, {"more than 64 dimensions"});
  const ScopedVariable floor(kFileMemory, "1MiB");
  std::string keys = R"({"__metadata__":{)", tensors = "{";
  for (int i = 0; i < 50'000; ++i) {
    keys += c10::str("\"", i, "\":\"\",");
    tensors += c10::str("\"", i, R"(":{},)");
  }
  EXPECT_EQ(read(keys + "\"z\":\"\"}}"), 0U);
  expect_error<DataError>([&] { read(tensors + "\"z\":{}}"); }, {"'0' has no dtype"});
  const std::string dtype = safetensors_bytes(R"({"a":{"dtype":")" + std::string(4'000'000, '\x7f') + "\"}}");
  const std::string path = folder.write("a.safetensors", dtype);
  EXPECT_LT(peak_memory([&] { expect_error<DataError>([&] { read_safetensors(path); }, {"'a' has dtype"}); }),
            uint64_t{1 << 20} + 17 * dtype.size());
}

// Of one float in storage 0, `count` views of `extent` elements, all of them the same one.
std::string pickle_of_views(int count, int extent) {
  std::string storage = "(" + pickled("storage") + "ctorch\nFloatStorage\n" + pickled("0") + pickled("cpu") + "K\x01tQ";
  std::string program = "\x80\x02}(";
  for (int i = 0; i < count; ++i) {
    const std::string size = "J" + std::string(reinterpret_cast<const char*>(&extent), sizeof extent);
    program += pickled(c10::str("t", i)) + "ctorch._utils\n_rebuild_tensor_v2\n(" + storage;
    program += std::string("K\0", 2) + size + "\x85" + std::string("K\0\x85", 3) + "\x89}tR";
  }
  return program + "u.";
}

PtFile read_program(const TempDir& folder, const std::string& program) {
  const float one = 1;
  const std::string element(reinterpret_cast<const char*>(&one), sizeof one);
  write_pt_archive(folder / "a.pt", {{"data.pkl", program}, {"data/0", element}});
  return read_pt(folder / "a.pt");
}

TEST(PtFile, HasOneBudgetForAllViewsOfAFile) {
  const TempDir folder;
  const std::string program = pickle_of_views(6, 1 << 28);  // 1 GiB each
  expect_error<DataError>([&] { read_program(folder, program); },
                          {"what its tensors hold unfolds to more", kFileMemory});
  const ScopedVariable raised(kFileMemory, "7GiB");
  EXPECT_EQ(read_program(folder, program).state.tensors().size(), 6U);
  EXPECT_EQ(read_program(folder, pickle_of_views(2, 1000)).state.tensor("t1").numel(), 1000);
}

TEST(Pickle, ChargesValuesMarksAndItsMemo) {
  const TempDir folder;
  const ScopedVariable floor(kFileMemory, "1MiB");
  const std::string start = "\x80\x04}";
  constexpr size_t kTimes = 1'000'000;
  for (const std::string& opcode : {std::string("("), std::string("\x94"), std::string(")"), std::string("]")}) {
    expect_error<DataError>([&] { read_program(folder, start + repeated(opcode, kTimes) + "."); },
                            {"its pickle unfolds to more", kFileMemory});
  }
  // An honest list of small numbers is no bomb.
  std::string numbers = start + pickled("n") + "](";
  for (int i = 0; i < 1000; ++i) numbers += std::string("K") + static_cast<char>(i % 256);
  EXPECT_EQ(read_program(folder, numbers + "es.").state.integer("n.255"), 255);
}

// A name stands in the file once.
TEST(PtFile, ChargesNamesForEachValueThatHasThem) {
  const TempDir folder;
  const ScopedVariable floor(kFileMemory, "1MiB");
  const std::string start = "\x80\x02}", name = pickled(std::string(100'000, 'k'));
  const std::string without_text = start + name + "}(" + repeated("NN", 1000) + "us.";
  const std::string groups =
      start + "(" + name + std::string("q\0}q\1", 5) + repeated(std::string("h\0h\1", 4), 1000) + "u.";
  for (const std::string& program : {without_text, groups}) {
    expect_error<DataError>([&] { read_program(folder, program); }, {"its pickle unfolds to more", kFileMemory});
  }
}

TEST(ReadIdx, RefusesAFileThatUnpacksToFarMoreThanItsSize) {
  const TempDir dir;
  const ScopedVariable floor(kFileMemory, "1MiB");
  write_gz(dir / "bomb.gz", idx_bytes(0x08, {20'000'000}, std::string(20'000'000, '\0')));
  expect_error<DataError>([&] { read_idx(dir / "bomb.gz"); }, {"bomb.gz", "unfolds to more", kFileMemory});
  const ScopedVariable raised(kFileMemory, "20MiB");
  EXPECT_EQ(read_idx(dir / "bomb.gz").numel(), 20'000'000);
}

TEST(Png, RefusesAPictureFarLargerThanItsFile) {
  const std::string bytes = encode_png(at::zeros({2000, 2000, 3}, at::kByte));
  EXPECT_EQ(decode_png(bytes).size(0), 2000);
  const ScopedVariable floor(kFileMemory, "1MiB");
  expect_error<DataError>([&] { decode_png(bytes); }, {"2000 x 2000", kFileMemory});
}

// Texts of a few kilobytes that unpack to megabytes each.
TEST(Png, PassesOverPackedTexts) {
  const std::string bytes = encode_png(at::zeros({2, 2, 3}, at::kByte));
  const std::string content(7 << 20, 'x');
  std::string packed(compressBound(content.size()), '\0');
  uLongf size = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(content.data()),
           content.size());
  const std::string chunk = std::string("zTXtk\0\0", 7) + packed.substr(0, size);
  const auto number = [](uint64_t value) {
    std::string text;
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
    return text;
  };
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(chunk.data()), chunk.size());
  constexpr size_t kHead = 33;  // signature and IHDR
  const std::string texts = repeated(number(chunk.size() - 4) + chunk + number(crc), 60);
  const std::string file = bytes.substr(0, kHead) + texts + bytes.substr(kHead);
  EXPECT_LT(peak_memory([&] { EXPECT_EQ(decode_png(file).numel(), 12); }), uint64_t{64} << 20);
}

// One picture of ten kilobytes was two gigabytes of floats.
TEST(ImageFolder, TakesTheMemoryThatItsPicturesMay) {
  const TempDir folder;
  constexpr int64_t kSide = 3000;
  std::filesystem::create_directories(folder / "set/a");
  folder.write("set/a/0.png", encode_png(at::full({kSide, kSide, 3}, 7, at::kByte)));
  const ImageFolder data({.root = folder / "set"});
  const uint64_t taken = peak_memory([&] { EXPECT_EQ(data.get({0})["image"].size(0), 1); });
  if (memory_can_be_limited()) EXPECT_LT(taken, uint64_t{8 << 20} + 20 * kSide * kSide);
  const ScopedVariable floor(kFileMemory, "100MiB");
  expect_error<DataError>([&] { data.get({0}); }, {"0.png", "3000 x 3000", kFileMemory});
  expect_error<DataError>([] { check_picture("Png", {1 << 20, 1 << 10, 3}, 100); },
                          {"1048576 x 1024", "scale it down"});
}

// 20 columns of 100 texts each are 2000 columns of 0 and 1.
TEST(CsvDataset, RefusesCategoriesThatUnfoldToFarMoreThanTheTable) {
  const TempDir folder;
  std::string text;
  for (int row = -1; row < 2000; ++row) {
    for (int column = 0; column < 20; ++column)
      text += row < 0 ? c10::str("c", column, ",") : c10::str("k", row % 100, ",");
    text += row < 0 ? "y\n" : "0.5\n";
  }
  const CsvOptions options{.path = folder.write("a.csv", text), .target = {"y"}};
  EXPECT_EQ(CsvDataset(options).values(), 2000);
  const ScopedVariable floor(kFileMemory, "0");
  expect_error<DataError>([&] { CsvDataset{options}; }, {"a.csv", "2000 rows of 2000 values", kFileMemory});
}

TEST(Csv, TakesMemoryInProportionToItsText) {
  const ScopedVariable floor(kFileMemory, "0");
  const auto parse = [](const std::string& text) { parse_csv(text, "a.csv"); };
  expect_error<DataError>([&] { parse("a,b,c\n" + repeated(",,\n", 10'000)); }, {"a.csv:", "unfolds", kFileMemory});
  expect_error<DataError>([&] { parse(repeated("column_of_numbers,", 100'001) + "z\n"); }, {"more than 100000 fields"});
  expect_error<DataError>([&] { parse(std::string(1001, 'x') + "\n1\n"); },
                          {"at most 1000 bytes", "that of the names?"});
  const std::string row = repeated("0.125,", 20) + "7\n";
  std::string header;
  for (int i = 0; i < 20; ++i) header += c10::str("column", i, ",");
  EXPECT_EQ(parse_csv(header + "y\n" + repeated(row, 100), "a.csv").rows.size(), 100U);
  std::string wide = "y";
  for (int i = 0; i < 16; ++i) wide += c10::str(",", i);
  wide += repeated("\n" + std::string(16, ','), 100'000);
  const uint64_t taken = peak_memory([&] { expect_error<DataError>([&] { parse(wide); }, {"unfolds", kFileMemory}); });
  if (!memory_can_be_limited()) return;  // a sanitizer surrounds each field by memory of its own
  EXPECT_LT(taken, kCsvTimes * wide.size());
}

// An archive of one entry, packed, and what its directory claims that to unpack to.
std::string packed_zip(const TempDir& folder, const std::string& content, uint32_t claimed) {
  write_pt_archive(folder / "a.zip", {{"x", content}}, /*packed=*/true);
  std::string bytes = read_bytes(folder / "a.zip");
  std::memcpy(bytes.data() + bytes.find("PK\1\2") + 24, &claimed, sizeof claimed);
  return bytes;
}

TEST(ZipArchive, VerifiesWhatLibTorchIsGoingToLoad) {
  const TempDir folder;
  const auto verify = [&](const std::string& bytes) {
    const std::string path = folder.write("a.pt", bytes);
    return malformed([&] { zip_archive::verify_archive(path); });
  };
  const std::string content(1'000'000, 'x');
  EXPECT_EQ(verify(packed_zip(folder, content, 1'000'000)), "");
  for (const char* name : {"script.pt", "compressed.pt"}) EXPECT_EQ(verify(read_bytes(python_file(name))), "") << name;
  expect_contains(verify(packed_zip(folder, content, 999'999)), {"'a/x' does not unpack to the 999999 bytes"});
  expect_contains(verify(packed_zip(folder, content, 1'000'001)), {"'a/x' does not unpack"});
  std::string flipped = packed_zip(folder, std::string(200, 'y') + "z", 201);
  flipped[64] = static_cast<char>(flipped[64] ^ 1);  // where the entry's bytes begin
  EXPECT_NE(verify(flipped), "");
  const ScopedVariable floor(kFileMemory, "1KiB");
  expect_contains(verify(packed_zip(folder, content, 1'000'000)), {"its ZIP archive unfolds to more", kFileMemory});
}

}  // namespace
}  // namespace duet
