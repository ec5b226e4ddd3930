#include "io/idx.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>
#include <c10/util/StringUtil.h>
#include <zlib.h>
#include "io/file_io.h"
#include "io/file_memory.h"
#include "io/plain_tensor.h"
#include "io/read_file.h"

namespace duet {

namespace {

constexpr int kMaxIdxDims = 16;
constexpr uint64_t kUnpackedTimes = 64;  // gzip reaches 1000, with a file of zeros

const std::map<int, at::ScalarType> kIdxTypes = {{0x08, at::kByte}, {0x09, at::kChar},  {0x0B, at::kShort},
                                                 {0x0C, at::kInt},  {0x0D, at::kFloat}, {0x0E, at::kDouble}};

// `path`, or its twin with or without ".gz" if that is the one that exists.
std::string existing_file(const std::string& path) {
  const std::string twin = path.ends_with(".gz") ? path.substr(0, path.size() - 3) : path + ".gz";
  std::error_code ignored;
  return !std::filesystem::exists(path, ignored) && std::filesystem::exists(twin, ignored) ? twin : path;
}

// The bytes of a file, gzip or plain, one after the other.
class UnpackedFile {
 public:
  explicit UnpackedFile(const std::string& path) : size_(file_io::FileReader(path).size()) {
    file_ = gzopen(path.c_str(), "rb");
    expect_file(file_ != nullptr, "it cannot be opened (", std::strerror(errno), ")");
  }
  ~UnpackedFile() { gzclose_r(file_); }
  UnpackedFile(const UnpackedFile&) = delete;
  UnpackedFile& operator=(const UnpackedFile&) = delete;

  uint64_t packed_size() const { return size_; }

  void read(void* to, uint64_t size) {
    const uint64_t found = read_some(to, size);
    expect_file(found == size, "found ", done_, " bytes, expected ", size - found, " more at least; it is truncated");
  }
  bool at_end() {
    uint8_t more = 0;
    return read_some(&more, 1) == 0;
  }

 private:
  // Fewer at the end. A gzip stream that ends early is an error of its own, found even if all bytes asked for came.
  uint64_t read_some(void* to, uint64_t size) {
    constexpr uint64_t kMost = uint64_t{1} << 28;  // gzread counts in int
    uint64_t found = 0;
    for (int got = 1; found < size && got > 0; found += static_cast<uint64_t>(std::max(got, 0))) {
      got = gzread(file_, static_cast<uint8_t*>(to) + found, static_cast<unsigned>(std::min(size - found, kMost)));
      int code = Z_OK;
      const char* const text = gzerror(file_, &code);
      expect_file(code == Z_OK || code == Z_STREAM_END, "found damaged data (",
                  code == Z_ERRNO ? std::strerror(errno) : text, ")");
    }
    done_ += found;
    return found;
  }

  uint64_t size_ = 0, done_ = 0;
  gzFile file_ = nullptr;
};

// Values that are big-endian in the file, as this machine has them.
void to_native(const at::Tensor& values) {
  const auto size = static_cast<std::ptrdiff_t>(values.element_size());
  if (size == 1 || std::endian::native == std::endian::big) return;
  auto* at = static_cast<uint8_t*>(values.mutable_data_ptr());
  for (const auto* end = at + values.nbytes(); at != end; at += size) std::reverse(at, at + size);
}

at::Tensor read_values(const std::string& path) {
  UnpackedFile file(path);
  uint8_t magic[4] = {};
  file.read(magic, sizeof magic);
  const auto type = kIdxTypes.find(magic[2]);
  const int dims = magic[3];
  expect_file(magic[0] == 0 && magic[1] == 0 && type != kIdxTypes.end() && dims >= 1 && dims <= kMaxIdxDims,
              "found the first bytes ", c10::Join(" ", std::vector<int>(magic, magic + 4)),
              ", expected 0 0, a type (8, 9 or 11 to 14) and 1 to ", kMaxIdxDims, " dimensions: this is no IDX file");
  std::vector<int64_t> shape;
  for (int i = 0; i < dims; ++i) {
    uint8_t b[4] = {};
    file.read(b, sizeof b);
    shape.push_back(int64_t{b[0]} << 24 | int64_t{b[1]} << 16 | int64_t{b[2]} << 8 | int64_t{b[3]});
  }
  const std::optional<uint64_t> bytes = bytes_of_shape(shape, type->second);
  expect_file(bytes.has_value(), "found dimensions ", c10::Join("x", shape), " that no memory can hold");
  FileBudget(file.packed_size(), kUnpackedTimes).charge(*bytes, "what it holds");
  at::Tensor values = tensor_from_file(shape, type->second, "its values", [&](void* data) { file.read(data, *bytes); });
  expect_file(file.at_end(), "found more than the ", *bytes, " bytes of its ", c10::Join("x", shape), " values");
  to_native(values);
  return values;
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  const std::string file = existing_file(path);
  return read_file("read_idx", file, [&] { return read_values(file); });
}

}  // namespace duet
