#include "io/npy.h"
#include <algorithm>
#include <cstring>
#include <map>
#include <regex>
#include <utility>
#include <vector>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "io/file_io.h"

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

template <class... Parts>
void check_npy(bool holds, const Parts&... what) {
  if (!holds) throw DataError(c10::str("[Npy] ", what...));
}

// The header is a Python dict with these three entries.
NpyHeader parse_npy_header(const std::string& text, uint64_t data_begin) {
  static const std::regex form(R"(^\s*\{\s*'descr':\s*'([^']{1,8})',\s*'fortran_order':\s*(True|False),)"
                               R"(\s*'shape':\s*\(([0-9, ]*)\),?\s*\}\s*$)");
  std::smatch found;
  check_npy(std::regex_match(text, found, form), "found the header ", text.substr(0, 200),
            ", expected a plain array; save it as one, without fields or objects");
  const auto type = kNpyTypes.find(found[1].str());
  check_npy(type != kNpyTypes.end(), "found dtype '", found[1].str(),
            "', expected bool, uint8, int8 to int64 or float16 to float64, little-endian; convert it with astype()");
  NpyHeader header{type->second, found[2].str() == "True", {}, data_begin};
  std::string sizes = found[3].str();
  std::erase(sizes, ' ');
  for (std::size_t at = 0; at < sizes.size();) {
    const std::size_t end = std::min(sizes.find(',', at), sizes.size());
    const auto size = parse_number<int64_t>(sizes.substr(at, end - at));
    check_npy(size && header.shape.size() < kMaxNpyDims, "found the shape (", found[3].str(),
              "), expected whole numbers");
    header.shape.push_back(*size);
    at = end + 1;
  }
  return header;
}

NpyHeader read_npy_header(const file_io::FileReader& file) {
  unsigned char start[12] = {};
  check_npy(file.size() >= sizeof(start), "found a file of ", file.size(), " bytes, expected an array of numpy.save");
  file.read(0, start, sizeof(start));
  check_npy(std::memcmp(start, "\x93NUMPY", 6) == 0, "found a file that numpy.save has not written");
  const bool is_first = start[6] == 1;
  const uint64_t length =
      is_first ? start[8] + 256U * start[9] : start[8] + 256U * start[9] + 65536U * start[10] + 16777216U * start[11];
  const uint64_t begin = is_first ? 10 : 12;
  check_npy(length <= kMaxNpyHeader && begin + length <= file.size(), "found a header of ", length,
            " bytes, expected one that fits into the file; save it again");
  std::string text(length, '\0');
  file.read(begin, text.data(), length);
  return parse_npy_header(text, begin + length);
}

void check_npy_size(const NpyHeader& header, uint64_t file_size) {
  uint64_t bytes = c10::elementSize(header.type);
  for (const int64_t size : header.shape) {
    const bool fits = size >= 0 && (size == 0 || bytes <= file_size / static_cast<uint64_t>(size) + 1);
    check_npy(fits, "found the shape ", c10::IntArrayRef(header.shape), ", which is more than the file holds");
    bytes *= static_cast<uint64_t>(size);
  }
  check_npy(header.data_begin + bytes == file_size, "found ", file_size - header.data_begin,
            " bytes of values, expected ", bytes, " for ", header.type, c10::IntArrayRef(header.shape),
            "; it was cut off or changed, save it again");
}

at::Tensor read_npy_values(const file_io::FileReader& file) {
  NpyHeader header = read_npy_header(file);
  check_npy_size(header, file.size());
  if (header.fortran_order) std::reverse(header.shape.begin(), header.shape.end());
  const at::Tensor values = at::empty(header.shape, header.type);
  file.read(header.data_begin, values.mutable_data_ptr(), values.nbytes());
  return header.fortran_order ? values.numpy_T().contiguous() : values;
}

}  // namespace

at::Tensor read_npy(const std::string& path) try {
  return read_npy_values(file_io::FileReader(path));
} catch (const file_io::IoError& error) {
  throw DataError(std::string("[Npy] ") + error.what() + ", expected a readable file; correct the path");
} catch (const DataError& error) {
  throw DataError(std::string(error.what()) + " (file '" + path + "')");
}

}  // namespace duet
