#include <algorithm>
#include <string>
#include <vector>
#include <zlib.h>
#include "io/file_memory.h"
#include "io/zip_archive.h"

namespace duet::zip_archive {

namespace {

constexpr size_t kBlock = size_t{1} << 18;
constexpr uint64_t kArchiveTimes = 16;
constexpr uint16_t kStored = 0, kDeflated = 8;

// The bytes of an entry as they come out, of which size and CRC are kept.
class Unpacked {
 public:
  explicit Unpacked(const Entry& entry) : entry_(entry) {}

  void add(const unsigned char* data, size_t bytes) {
    size_ += bytes;
    expect_file(size_ <= entry_.unpacked, "entry '", entry_.name, "' unpacks to more than the ", entry_.unpacked,
                " bytes that the ZIP directory says");
    crc_ = ::crc32_z(crc_, data, bytes);
  }
  void finish() const {
    expect_file(size_ == entry_.unpacked && crc_ == entry_.crc, "entry '", entry_.name,
                "' changed after it was written (its CRC does not match)");
  }

 private:
  const Entry& entry_;
  uint64_t size_ = 0;
  uLong crc_ = ::crc32(0, nullptr, 0);
};

class Inflater {
 public:
  Inflater() { expect_file(::inflateInit2(&stream_, -MAX_WBITS) == Z_OK, "zlib has no memory to unpack it"); }
  ~Inflater() { ::inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  void add(std::vector<unsigned char>& packed, size_t bytes, const Entry& entry, Unpacked& out) {
    stream_.next_in = packed.data();
    stream_.avail_in = static_cast<uInt>(bytes);
    while (stream_.avail_in > 0 && !ended_) {
      stream_.next_out = block_.data();
      stream_.avail_out = static_cast<uInt>(block_.size());
      const int code = ::inflate(&stream_, Z_NO_FLUSH);
      expect_file(code == Z_OK || code == Z_STREAM_END, "entry '", entry.name, "' is damaged");
      out.add(block_.data(), block_.size() - stream_.avail_out);
      ended_ = code == Z_STREAM_END;
    }
  }
  bool ended() const { return ended_; }

 private:
  z_stream stream_{};
  std::vector<unsigned char> block_ = std::vector<unsigned char>(kBlock);
  bool ended_ = false;
};

}  // namespace

void Reader::verify(const Entry& entry) const {
  constexpr uint16_t kLocked = 1;
  expect_file((entry.method == kStored || entry.method == kDeflated) && (entry.flags & kLocked) == 0, "entry '",
              entry.name, "' is encrypted or packed in a way that duet does not know");
  uint64_t from = begin_of(entry);
  std::vector<unsigned char> block(kBlock);
  Unpacked out(entry);
  Inflater inflater;
  for (uint64_t left = entry.bytes; left > 0;) {
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(block.size(), left));
    file_.read(from, block.data(), bytes);
    from += bytes;
    left -= bytes;
    if (entry.method == kStored) {
      out.add(block.data(), bytes);
    } else {
      inflater.add(block, bytes, entry, out);
    }
  }
  expect_file(entry.method == kStored || inflater.ended(), "entry '", entry.name, "' ends too early");
  out.finish();
}

void verify_archive(const std::string& path) {
  const Reader archive(path);
  FileBudget budget(archive.size(), kArchiveTimes);
  for (const Entry& entry : archive.entries()) budget.charge(entry.unpacked, "its ZIP archive");
  for (const Entry& entry : archive.entries()) archive.verify(entry);
}

}  // namespace duet::zip_archive
