#include "io/idx.h"
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <zlib.h>
#include "base/error.h"
#include "io/file_memory.h"
#include "io/plain_tensor.h"
#include "io/read_file.h"

namespace duet {

namespace {

constexpr int kMaxDims = 16;
constexpr uint64_t kUnpackedTimes = 64;  // gzip reaches 1000, with a file of zeros

// `path`, or its twin with or without ".gz" if that is the one that exists.
std::string existing_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return path;
  const bool gz = path.size() > 3 && path.ends_with(".gz");
  const std::string twin = gz ? path.substr(0, path.size() - 3) : path + ".gz";
  if (std::filesystem::is_regular_file(twin, ignored)) return twin;
  require<DataError>(!std::filesystem::exists(path, ignored),
                     "[read_idx] '" + path + "': found no regular file, expected an IDX file; name a file");
  throw DataError("[read_idx] '" + path + "': found nothing there nor at '" + twin +
                  "', expected an IDX file; correct the path");
}

class Source {
 public:
  explicit Source(const std::string& path) : file_(gzopen(path.c_str(), "rb")) {
    expect_file(file_ != nullptr, "found that it cannot be opened (", std::strerror(errno),
                "), expected a readable one");
  }
  ~Source() { gzclose_r(file_); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  // Up to `size` bytes, how many: fewer at the end of the file.
  uint64_t read(void* to, uint64_t size) {
    constexpr uint64_t kMost = uint64_t{1} << 28;  // gzread counts in int
    uint64_t done = 0;
    for (int got = 1; done < size && got > 0; done += static_cast<uint64_t>(std::max(got, 0))) {
      const auto wanted = static_cast<unsigned>(std::min(size - done, kMost));
      got = gzread(file_, static_cast<uint8_t*>(to) + done, wanted);
      check_stream();
    }
    return done;
  }

  bool plain() { return gzdirect(file_) != 0; }

 private:
  // A gzip stream that ends early is an error of its own, found even if all bytes asked for came.
  void check_stream() {
    int code = Z_OK;
    const char* text = gzerror(file_, &code);
    if (code == Z_OK || code == Z_STREAM_END) return;
    expect_file(false, "found damaged data (", code == Z_ERRNO ? std::strerror(errno) : text, "), expected a whole ",
                plain() ? "" : "gzip ", "file");
  }

  gzFile file_;
};

struct Header {
  at::ScalarType dtype = at::kByte;
  std::vector<int64_t> shape{};
  uint64_t payload_bytes = 0;
  uint64_t bytes = 0;  // of the header itself
};

at::ScalarType type_of(uint8_t code) {
  switch (code) {
    case 0x08: return at::kByte;
    case 0x09: return at::kChar;
    case 0x0B: return at::kShort;
    case 0x0C: return at::kInt;
    case 0x0D: return at::kFloat;
    case 0x0E: return at::kDouble;
    default: break;
  }
  throw MalformedFile{c10::str("found type code ", static_cast<int>(code),
                               ", expected 8, 9, 11, 12, 13 or 14; this is not an IDX file")};
}

Header read_header(Source& source) {
  uint8_t magic[4] = {};
  const uint64_t found = source.read(magic, sizeof magic);
  expect_file(found == sizeof magic, "found ", found,
              " bytes, expected at least the 4 of the magic number; the file is truncated");
  expect_file(magic[0] == 0 && magic[1] == 0, "found first bytes ", static_cast<int>(magic[0]), " ",
              static_cast<int>(magic[1]), ", expected 0 0; this is not an IDX file");
  Header header{.dtype = type_of(magic[2])};
  const int dims = magic[3];
  expect_file(dims >= 1 && dims <= kMaxDims, "found ", dims, " dimensions, expected 1 to ", kMaxDims,
              "; this is not an IDX file");
  std::vector<uint8_t> raw(4 * static_cast<size_t>(dims));
  header.bytes = sizeof magic + raw.size();
  const uint64_t in_all = sizeof magic + source.read(raw.data(), raw.size());
  expect_file(in_all == header.bytes, "found ", in_all, " bytes, expected a header of ", header.bytes, " for ", dims,
              " dimensions; the file is truncated");
  for (const uint8_t* b = raw.data(); b != raw.data() + raw.size(); b += 4) {
    header.shape.push_back(int64_t{b[0]} << 24 | int64_t{b[1]} << 16 | int64_t{b[2]} << 8 | int64_t{b[3]});
  }
  const std::optional<uint64_t> bytes = bytes_of_shape(header.shape, header.dtype);
  expect_file(bytes.has_value(), "found dimensions ", c10::Join("x", header.shape),
              " that no memory can hold, expected real ones; the header is damaged");
  header.payload_bytes = *bytes;
  return header;
}

std::string expected_bytes(const Header& header) {
  return c10::str("expected ", header.bytes + header.payload_bytes, " (header of ", header.bytes, " and ",
                  c10::Join("x", header.shape), " values of ", c10::elementSize(header.dtype), " bytes)");
}

// Values that are big-endian in the file, as this machine has them.
void to_native(const at::Tensor& values) {
  const auto size = static_cast<std::ptrdiff_t>(values.element_size());
  if (size == 1 || std::endian::native == std::endian::big) return;
  auto* at = static_cast<uint8_t*>(values.mutable_data_ptr());
  for (const auto* end = at + values.nbytes(); at != end; at += size) std::reverse(at, at + size);
}

at::Tensor read_values(const std::string& file) {
  Source source(file);
  const Header header = read_header(source);
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(file, error);
  if (header.payload_bytes > file_memory(error ? 0 : size, kUnpackedTimes)) {
    throw MalformedFile{c10::str("found ", size, " bytes, ", expected_bytes(header),
                                 ", which is more than a file of its size may unfold to"),
                        kFileMemoryWayOut};
  }
  // A plain file tells its length beforehand; a gzip one tells it while it is read.
  expect_file(error || !source.plain() || size == header.bytes + header.payload_bytes, "found ", size, " bytes, ",
              expected_bytes(header), "; it is truncated or damaged");
  const at::Tensor values = at::empty(header.shape, at::TensorOptions(header.dtype));  // touched as bytes really come
  const uint64_t found = source.read(values.mutable_data_ptr(), header.payload_bytes);
  expect_file(found == header.payload_bytes, "found ", header.bytes + found, " bytes, ", expected_bytes(header),
              "; it is truncated");
  uint8_t more = 0;
  expect_file(source.read(&more, 1) == 0, "found more bytes than its header tells, ", expected_bytes(header));
  to_native(values);
  return values;
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  const std::string file = existing_file(path);
  return read_file("read_idx", file, [&] { return read_values(file); });
}

}  // namespace duet
