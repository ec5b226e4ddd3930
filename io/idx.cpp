#include "io/idx.h"
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>
#include <zlib.h>
#include "base/error.h"
#include "io/file_memory.h"

namespace duet {

namespace {

using Bytes = std::vector<uint8_t>;

constexpr int kMaxDims = 16;
constexpr uint64_t kUnpackedTimes = 64;  // gzip reaches 1000, with a file of zeros

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw DataError(c10::str("[read_idx] file '", path, "': ", what));
}

template <class... Parts>
void check(const std::string& path, bool holds, const Parts&... what) {
  if (!holds) fail(path, c10::str(what...));
}

// `path`, or its twin with or without ".gz" if that is the one that exists.
std::string existing_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return path;
  const bool gz = path.size() > 3 && path.compare(path.size() - 3, 3, ".gz") == 0;
  const std::string twin = gz ? path.substr(0, path.size() - 3) : path + ".gz";
  if (std::filesystem::is_regular_file(twin, ignored)) return twin;
  if (std::filesystem::exists(path, ignored)) fail(path, "found no regular file, expected an IDX file; name a file");
  fail(path, c10::str("found nothing there nor at '", twin, "', expected an IDX file; correct the path"));
}

class Source {
 public:
  explicit Source(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    check(path, file_ != nullptr, "found that it cannot be opened (", std::strerror(errno),
          "), expected a readable file; ", "check its permissions");
  }
  ~Source() { gzclose_r(file_); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  // Up to `size` bytes: fewer at the end of the file. Memory is touched as bytes really come: a damaged header takes
  // none.
  Bytes read(uint64_t size) {
    constexpr uint64_t kStep = uint64_t{1} << 20, kMost = uint64_t{1} << 28;  // gzread counts in int
    Bytes bytes;
    bytes.reserve(size);
    while (bytes.size() < size) {
      const size_t done = bytes.size();
      const uint64_t wanted = std::min({size - done, std::max<uint64_t>(kStep, done), kMost});
      bytes.resize(done + static_cast<size_t>(wanted));
      const int got = gzread(file_, bytes.data() + done, static_cast<unsigned>(wanted));
      check_stream();
      bytes.resize(done + static_cast<size_t>(std::max(got, 0)));
      if (got <= 0) break;
    }
    return bytes;
  }

  bool plain() { return gzdirect(file_) != 0; }

 private:
  // A gzip stream that ends early is an error of its own, found even if all bytes asked for came.
  void check_stream() {
    int code = Z_OK;
    const char* text = gzerror(file_, &code);
    if (code == Z_OK || code == Z_STREAM_END) return;
    const std::string reason = code == Z_ERRNO ? std::strerror(errno) : text;
    fail(path_, c10::str("found damaged data (", reason, "), expected a whole ", plain() ? "" : "gzip ",
                         "file; fetch or install it again"));
  }

  std::string path_;
  gzFile file_;
};

struct Header {
  at::ScalarType dtype = at::kByte;
  size_t item_bytes = 1;
  std::vector<int64_t> shape;
  uint64_t payload_bytes = 0;
  uint64_t bytes = 0;  // of the header itself
};

at::ScalarType type_of(const std::string& path, uint8_t code) {
  switch (code) {
    case 0x08: return at::kByte;
    case 0x09: return at::kChar;
    case 0x0B: return at::kShort;
    case 0x0C: return at::kInt;
    case 0x0D: return at::kFloat;
    case 0x0E: return at::kDouble;
    default: break;
  }
  fail(path, c10::str("found type code ", static_cast<int>(code),
                      ", expected 8, 9, 11, 12, 13 or 14; this is not an IDX file"));
}

Header read_header(const std::string& path, Source& source) {
  const Bytes magic = source.read(4);
  check(path, magic.size() == 4, "found ", magic.size(),
        " bytes, expected at least the 4 of the magic number; the file is truncated");
  check(path, magic[0] == 0 && magic[1] == 0, "found first bytes ", static_cast<int>(magic[0]), " ",
        static_cast<int>(magic[1]), ", expected 0 0; this is not an IDX file");
  Header header;
  header.dtype = type_of(path, magic[2]);
  header.item_bytes = c10::elementSize(header.dtype);
  const int dims = magic[3];
  check(path, dims >= 1 && dims <= kMaxDims, "found ", dims, " dimensions, expected 1 to ", kMaxDims,
        "; this is not an IDX file");
  const Bytes raw = source.read(4 * static_cast<uint64_t>(dims));
  header.bytes = 4 + 4 * static_cast<uint64_t>(dims);
  check(path, 4 + raw.size() == header.bytes, "found ", 4 + raw.size(), " bytes, expected a header of ", header.bytes,
        " for ", dims, " dimensions; the file is truncated");
  uint64_t count = 1, extent = header.item_bytes;  // extent: with 1 for each 0, which bounds the strides too
  for (int d = 0; d < dims; ++d) {
    const uint8_t* b = raw.data() + 4 * d;
    const uint64_t size = uint64_t{b[0]} << 24 | uint64_t{b[1]} << 16 | uint64_t{b[2]} << 8 | uint64_t{b[3]};
    header.shape.push_back(static_cast<int64_t>(size));
    const bool overflows = __builtin_mul_overflow(extent, std::max<uint64_t>(size, 1), &extent);
    check(path, !overflows && extent <= uint64_t{INT64_MAX}, "found dimensions up to ", c10::Join("x", header.shape),
          " that no memory can hold, expected real ones; the header is damaged");
    count *= size;
  }
  header.payload_bytes = count * header.item_bytes;
  return header;
}

std::string expected_bytes(const Header& header) {
  return c10::str("expected ", header.bytes + header.payload_bytes, " (header of ", header.bytes, " and ",
                  c10::Join("x", header.shape), " values of ", header.item_bytes, " bytes)");
}

Bytes read_payload(const std::string& path, Source& source, const Header& header) {
  Bytes payload = source.read(header.payload_bytes);  // within the file's limit
  check(path, payload.size() == header.payload_bytes, "found ", header.bytes + payload.size(), " bytes, ",
        expected_bytes(header), "; the file is truncated, fetch or install it again");
  check(path, source.read(1).empty(), "found more bytes than its header tells, ", expected_bytes(header),
        "; the file is damaged, fetch or install it again");
  return payload;
}

// Values of `item_bytes` each, big-endian in the file, as this machine has them.
void to_native(Bytes& payload, size_t item_bytes) {
  if (item_bytes == 1 || std::endian::native == std::endian::big) return;
  for (size_t at = 0; at < payload.size(); at += item_bytes) {
    std::reverse(payload.begin() + static_cast<std::ptrdiff_t>(at),
                 payload.begin() + static_cast<std::ptrdiff_t>(at + item_bytes));
  }
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  const std::string file = existing_file(path);
  Source source(file);
  const Header header = read_header(file, source);
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(file, error);
  check(file, header.payload_bytes <= file_memory(error ? 0 : size, kUnpackedTimes), "found ", size, " bytes, ",
        expected_bytes(header), ", which is more than a file of its size may unfold to; ", kFileMemoryWayOut);
  // A plain file tells its length beforehand; a gzip one tells it while it is read.
  check(file, error || !source.plain() || size == header.bytes + header.payload_bytes, "found ", size, " bytes, ",
        expected_bytes(header), "; the file is truncated or damaged, fetch or install it again");
  auto payload = std::make_unique<Bytes>(read_payload(file, source, header));
  to_native(*payload, header.item_bytes);
  if (payload->empty()) return at::empty(header.shape, at::TensorOptions(header.dtype));
  Bytes* owned = payload.release();
  return at::from_blob(owned->data(), header.shape, [owned](void*) { delete owned; }, at::TensorOptions(header.dtype));
}

}  // namespace duet
