#include "io/idx.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>
#include <zlib.h>
#include "base/error.h"

namespace duet {

namespace {

using Bytes = std::vector<uint8_t>;

constexpr int kMaxDims = 16;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw DataError(c10::str("[read_idx] file '", path, "': ", what));
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

// A file of bytes, inflated on the way if it is gzip.
class Source {
 public:
  explicit Source(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (file_ == nullptr) {
      fail(path, c10::str("found that it cannot be opened (", std::strerror(errno), "), expected a readable file; ",
                          "check its permissions"));
    }
  }
  ~Source() { gzclose_r(file_); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  // Reads up to `size` bytes and returns how many there were before the end of the file.
  size_t read(uint8_t* target, size_t size) {
    constexpr size_t kMost = size_t{1} << 28;  // gzread counts in int
    size_t done = 0;
    while (done < size) {
      const int got = gzread(file_, target + done, static_cast<unsigned>(std::min(size - done, kMost)));
      check_stream();
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

  // Whether the file holds the data as it is. Known after the first read.
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

void read_type(const std::string& path, uint8_t code, Header& header) {
  static constexpr std::array<std::pair<uint8_t, at::ScalarType>, 6> kTypes = {{{0x08, at::kByte},
                                                                                {0x09, at::kChar},
                                                                                {0x0B, at::kShort},
                                                                                {0x0C, at::kInt},
                                                                                {0x0D, at::kFloat},
                                                                                {0x0E, at::kDouble}}};
  const auto found =
      std::find_if(kTypes.begin(), kTypes.end(), [code](const auto& type) { return type.first == code; });
  if (found == kTypes.end()) {
    fail(path, c10::str("found type code ", static_cast<int>(code),
                        ", expected 8, 9, 11, 12, 13 or 14; this is not an IDX file"));
  }
  header.dtype = found->second;
  header.item_bytes = c10::elementSize(header.dtype);
}

Header read_header(const std::string& path, Source& source) {
  std::array<uint8_t, 4> magic{};
  const size_t got = source.read(magic.data(), magic.size());
  if (got < magic.size()) {
    fail(path, c10::str("found ", got, " bytes, expected at least the 4 of the magic number; the file is truncated"));
  }
  if (magic[0] != 0 || magic[1] != 0) {
    fail(path, c10::str("found first bytes ", static_cast<int>(magic[0]), " ", static_cast<int>(magic[1]),
                        ", expected 0 0; this is not an IDX file"));
  }
  Header header;
  read_type(path, magic[2], header);
  const int dims = magic[3];
  if (dims < 1 || dims > kMaxDims) {
    fail(path, c10::str("found ", dims, " dimensions, expected 1 to ", kMaxDims, "; this is not an IDX file"));
  }
  Bytes raw(static_cast<size_t>(dims) * 4);
  header.bytes = magic.size() + raw.size();
  const size_t dim_bytes = source.read(raw.data(), raw.size());
  if (dim_bytes < raw.size()) {
    fail(path, c10::str("found ", magic.size() + dim_bytes, " bytes, expected a header of ", header.bytes, " for ",
                        dims, " dimensions; the file is truncated"));
  }
  uint64_t count = 1, extent = header.item_bytes;  // extent: with 1 for each 0, which bounds the strides too
  for (int d = 0; d < dims; ++d) {
    const uint8_t* b = raw.data() + 4 * d;
    const uint64_t size = uint64_t{b[0]} << 24 | uint64_t{b[1]} << 16 | uint64_t{b[2]} << 8 | uint64_t{b[3]};
    header.shape.push_back(static_cast<int64_t>(size));
    if (__builtin_mul_overflow(extent, std::max<uint64_t>(size, 1), &extent) || extent > uint64_t{INT64_MAX}) {
      fail(path, c10::str("found dimensions up to ", c10::Join("x", header.shape),
                          " that no memory can hold, expected real ones; the header is damaged"));
    }
    count *= size;
  }
  header.payload_bytes = count * header.item_bytes;
  return header;
}

std::string expected_bytes(const Header& header) {
  return c10::str("expected ", header.bytes + header.payload_bytes, " (header of ", header.bytes, " and ",
                  c10::Join("x", header.shape), " values of ", header.item_bytes, " bytes)");
}

// Memory grows with the bytes that really come: a damaged header cannot ask for more.
Bytes read_payload(const std::string& path, Source& source, const Header& header) {
  constexpr uint64_t kStep = uint64_t{1} << 20;
  Bytes payload;
  while (payload.size() < header.payload_bytes) {
    const size_t done = payload.size();
    const uint64_t step = std::max<uint64_t>(kStep, done);
    payload.resize(done + static_cast<size_t>(std::min<uint64_t>(header.payload_bytes - done, step)));
    const size_t got = source.read(payload.data() + done, payload.size() - done);
    if (done + got < payload.size()) {
      fail(path, c10::str("found ", header.bytes + done + got, " bytes, ", expected_bytes(header),
                          "; the file is truncated, fetch or install it again"));
    }
  }
  uint8_t extra = 0;
  if (source.read(&extra, 1) != 0) {
    fail(path, c10::str("found more bytes than its header tells, ", expected_bytes(header),
                        "; the file is damaged, fetch or install it again"));
  }
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
  // A plain file tells its length beforehand; a gzip one tells it while it is read.
  if (!error && source.plain() && size != header.bytes + header.payload_bytes) {
    fail(file, c10::str("found ", size, " bytes, ", expected_bytes(header),
                        "; the file is truncated or damaged, fetch or install it again"));
  }
  auto payload = std::make_unique<Bytes>(read_payload(file, source, header));
  to_native(*payload, header.item_bytes);
  if (payload->empty()) return at::empty(header.shape, at::TensorOptions(header.dtype));
  Bytes* owned = payload.release();
  return at::from_blob(owned->data(), header.shape, [owned](void*) { delete owned; }, at::TensorOptions(header.dtype));
}

}  // namespace duet
