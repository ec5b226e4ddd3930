#include "io/npy.h"
#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>
#include <map>
#include <set>
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

// The header is a Python dict of three entries. Taken apart without recursion: files may hold headers of any kind.
class NpyHeaderParser {
 public:
  explicit NpyHeaderParser(const std::string& text) : text_(text) {}

  NpyHeader parse() {
    NpyHeader header;
    std::set<std::string> seen;
    need(take('{'));
    while (!take('}')) {
      const std::string key = quoted();
      need(take(':') && seen.insert(key).second);
      if (key == "descr") {
        header.type = type();
      } else if (key == "fortran_order") {
        header.fortran_order = flag();
      } else {
        need(key == "shape");
        header.shape = shape();
      }
      if (take(',')) continue;
      need(take('}'));
      break;
    }
    pass_blanks();
    need(at_ == text_.size() && seen.size() == 3);
    return header;
  }

 private:
  void need(bool holds) const {
    check_npy(holds, "found the header ", text_.substr(0, 200),
              ", expected a plain array; save it as one, without fields or objects");
  }

  void pass_blanks() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  bool take(char wanted) {
    pass_blanks();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  std::string quoted() {
    pass_blanks();
    need(at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"'));
    const std::size_t begin = at_ + 1, end = text_.find(text_[at_], begin);
    need(end != std::string::npos);
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }

  std::string word() {
    pass_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::isalnum(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  at::ScalarType type() {
    const std::string name = quoted();
    const auto type = kNpyTypes.find(name);
    check_npy(type != kNpyTypes.end(), "found dtype '", name.substr(0, 200),
              "', expected bool, uint8, int8 to int64 or float16 to float64, little-endian; convert it with astype()");
    return type->second;
  }

  bool flag() {
    const std::string value = word();
    need(value == "True" || value == "False");
    return value == "True";
  }

  std::vector<int64_t> shape() {
    std::vector<int64_t> sizes;
    need(take('('));
    while (!take(')')) {
      const std::string text = word();
      const auto size = parse_number<int64_t>(text);
      check_npy(size.has_value(), "found the size '", text.substr(0, 200), "' in the shape, expected whole numbers; ",
                "save it again");
      check_npy(sizes.size() < kMaxNpyDims, "found a shape of more than ", kMaxNpyDims,
                " dimensions, expected at most these; reshape it");
      sizes.push_back(*size);
      if (take(',')) continue;
      need(take(')'));
      break;
    }
    return sizes;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

NpyHeader read_npy_header(const file_io::FileReader& file) {
  unsigned char start[12] = {};
  check_npy(file.size() >= sizeof(start), "found a file of ", file.size(), " bytes, expected an array of numpy.save");
  file.read(0, start, sizeof(start));
  check_npy(std::memcmp(start, "\x93NUMPY", 6) == 0, "found a file that numpy.save has not written");
  check_npy(start[6] >= 1 && start[6] <= 3, "found version ", int{start[6]},
            " of the format, expected 1 to 3; save it again");
  const bool is_first = start[6] == 1;
  const uint64_t length =
      is_first ? start[8] + 256U * start[9] : start[8] + 256U * start[9] + 65536U * start[10] + 16777216U * start[11];
  const uint64_t begin = is_first ? 10 : 12;
  check_npy(length <= kMaxNpyHeader && begin + length <= file.size(), "found a header of ", length,
            " bytes, expected one that fits into the file; save it again");
  std::string text(length, '\0');
  file.read(begin, text.data(), length);
  NpyHeader header = NpyHeaderParser(text).parse();
  header.data_begin = begin + length;
  return header;
}

void check_npy_size(const NpyHeader& header, uint64_t file_size) {
  uint64_t bytes = c10::elementSize(header.type);
  uint64_t extent = bytes;  // with 1 for each 0, which bounds the strides too
  for (const int64_t size : header.shape) {
    const bool fits = size >= 0 &&
                      !__builtin_mul_overflow(extent, static_cast<uint64_t>(std::max<int64_t>(size, 1)), &extent) &&
                      extent <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) &&
                      (size == 0 || bytes <= file_size / static_cast<uint64_t>(size) + 1);
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
  throw DataError(std::string(error.what()) + " (file '" + one_line(path) + "')");
}

}  // namespace duet
