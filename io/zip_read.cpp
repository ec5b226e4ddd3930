#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include <zlib.h>
#include "io/file_memory.h"
#include "io/zip_archive.h"

namespace duet::zip_archive {

namespace {

constexpr size_t kBlock = size_t{1} << 18;  // hashed while it is in the cache
constexpr uint64_t kArchiveTimes = 16;
constexpr uint16_t kStored = 0, kDeflated = 8;

// The bytes of an entry as they come out; their size and CRC are kept.
class Unpacked {
 public:
  using Take = std::function<void(const unsigned char* data, size_t bytes)>;
  Unpacked(const Entry& entry, const Take& take) : entry_(entry), take_(take) {}

  void add(const unsigned char* data, size_t bytes) {
    size_ += bytes;
    expect_file(size_ <= entry_.unpacked, "entry '", entry_.name, "' unpacks to more than the ", entry_.unpacked,
                " bytes that the ZIP directory says");
    crc_ = ::crc32_z(crc_, data, bytes);
    take_(data, bytes);
  }
  void finish() const {
    expect_file(size_ == entry_.unpacked && crc_ == entry_.crc, "entry '", entry_.name,
                "' changed after it was written (its CRC does not match)");
  }

 private:
  const Entry& entry_;
  const Take& take_;
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

void Reader::read_blocks(const Entry& entry,
                         const std::function<void(const unsigned char* data, size_t bytes)>& take) const {
  constexpr uint16_t kLocked = 1;
  expect_file((entry.method == kStored || entry.method == kDeflated) && (entry.flags & kLocked) == 0, "entry '",
              entry.name, "' is encrypted or packed in a way that duet does not know");
  uint64_t from = begin_of(entry);
  std::vector<unsigned char> block(std::min<uint64_t>(kBlock, entry.bytes));
  Unpacked out(entry, take);
  std::optional<Inflater> inflater;
  if (entry.method == kDeflated) inflater.emplace();
  for (uint64_t left = entry.bytes; left > 0;) {
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(block.size(), left));
    file_.read(from, block.data(), bytes);
    from += bytes;
    left -= bytes;
    if (inflater) {
      inflater->add(block, bytes, entry, out);
    } else {
      out.add(block.data(), bytes);
    }
  }
  expect_file(!inflater || inflater->ended(), "entry '", entry.name, "' ends too early");
  out.finish();
}

void verify_archive(const std::string& path) {
  const Reader archive(path);
  FileBudget budget(archive.size(), kArchiveTimes);
  for (const Entry& entry : archive.entries()) budget.charge(entry.unpacked, "its ZIP archive");
  for (const Entry& entry : archive.entries()) archive.verify(entry);
}

}  // namespace duet::zip_archive
