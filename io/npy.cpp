#include "io/npy.h"
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "io/bounded_json.h"
#include "io/file_io.h"
#include "io/plain_tensor.h"
#include "io/read_file.h"

namespace duet {

namespace {

constexpr uint64_t kMaxNpyHeader = 1 << 16;
constexpr std::size_t kMaxNpyDims = 32;

const std::map<std::string, at::ScalarType> kNpyTypes = {
    {"|b1", at::kBool}, {"|u1", at::kByte}, {"|i1", at::kChar},  {"<i2", at::kShort}, {"<i4", at::kInt},
    {"<i8", at::kLong}, {"<f2", at::kHalf}, {"<f4", at::kFloat}, {"<f8", at::kDouble}};

struct NpyHeader {
  at::ScalarType type = at::kFloat;
  bool fortran_order = false;
  std::vector<int64_t> shape;
  uint64_t data_begin = 0;
};

// The header is a Python dict of three entries: as JSON, of lists in the place of tuples.
std::string json_of(std::string text) {
  static constexpr std::array<std::pair<const char*, const char*>, 5> kLikes = {
      {{"'", "\""}, {"(", "["}, {")", "]"}, {"True", "true"}, {"False", "false"}}};
  for (const auto& [python, json] : kLikes) {
    for (std::size_t at = 0; (at = text.find(python, at)) != std::string::npos;) {
      text.replace(at, std::strlen(python), json);
    }
  }
  for (std::size_t comma = 0; (comma = text.find(',', comma)) != std::string::npos;) {
    const std::size_t next = text.find_first_not_of(" \t\r\n", comma + 1);
    const bool is_last = next != std::string::npos && (text[next] == ']' || text[next] == '}');
    if (is_last) {
      text.erase(comma, 1);
    } else {
      ++comma;
    }
  }
  return text;
}

NpyHeader parse_npy_header(const std::string& text) try {
  const auto dict = parse_json<nlohmann::json>(json_of(text), "the header");
  NpyHeader header;
  const std::string type = dict.at("descr").get<std::string>();
  const auto known = kNpyTypes.find(type);
  expect_file(known != kNpyTypes.end(), "found dtype '", one_line(type, 200),
              "', expected bool, uint8, int8 to int64 or float16 to float64, little-endian (see astype())");
  header.type = known->second;
  header.fortran_order = dict.at("fortran_order").get<bool>();
  expect_file(dict.at("shape").size() <= kMaxNpyDims, "found a shape of more than ", kMaxNpyDims, " dimensions");
  for (const auto& size : dict.at("shape")) {
    expect_file(size.is_number_integer(), "found the size ", size.dump(), " in the shape, expected whole numbers");
    header.shape.push_back(size.get<int64_t>());
  }
  if (dict.size() == 3) return header;
  throw MalformedFile{"found further entries in the header " + one_line(text, 200) + ", expected a plain array"};
} catch (const nlohmann::json::exception&) {
  throw MalformedFile{"found the header " + one_line(text, 200) +
                      ", expected a plain array, without fields or objects"};
}

NpyHeader read_npy_header(const file_io::FileReader& file) {
  unsigned char start[12] = {};
  file.read(0, start, std::min<uint64_t>(file.size(), sizeof start));
  const bool is_archive = std::memcmp(start, "PK", 2) == 0;  // of numpy.savez
  expect_file(std::memcmp(start, "\x93NUMPY", 6) == 0, "found a file that numpy.save has not written",
              is_archive ? " but numpy.savez, expected an array by itself: numpy.save(path, archive[name])" : "");
  expect_file(start[6] >= 1 && start[6] <= 3, "found version ", int{start[6]}, " of the format, expected 1 to 3");
  const bool is_first = start[6] == 1;
  const uint64_t length =
      is_first ? start[8] + 256U * start[9] : start[8] + 256U * start[9] + 65536U * start[10] + 16777216U * start[11];
  const uint64_t begin = is_first ? 10 : 12;
  expect_file(length <= kMaxNpyHeader && begin + length <= file.size(), "found a header of ", length,
              " bytes, expected one that fits into the file");
  std::string text(length, '\0');
  file.read(begin, text.data(), length);
  NpyHeader header = parse_npy_header(text);
  header.data_begin = begin + length;
  const std::optional<uint64_t> bytes = bytes_of_shape(header.shape, header.type);
  expect_file(bytes == file.size() - header.data_begin, "found ", file.size() - header.data_begin,
              " bytes of values, expected those of ", header.type, c10::IntArrayRef(header.shape),
              "; it was cut off or changed");
  return header;
}

at::Tensor read_npy_values(const file_io::FileReader& file) {
  NpyHeader header = read_npy_header(file);
  if (header.fortran_order) std::reverse(header.shape.begin(), header.shape.end());
  const at::Tensor values = at::empty(header.shape, header.type);
  file.read(header.data_begin, values.mutable_data_ptr(), values.nbytes());
  std::vector<int64_t> reversed(header.shape.size());
  std::iota(reversed.rbegin(), reversed.rend(), int64_t{0});
  return header.fortran_order ? values.permute(reversed).contiguous() : values;
}

}  // namespace

at::Tensor read_npy(const std::string& path) {
  return read_file("Npy", path, [&] { return read_npy_values(file_io::FileReader(path)); });
}

}  // namespace duet
