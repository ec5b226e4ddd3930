#include "io/zip_archive.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <zlib.h>
#include "io/file_memory.h"
#include "io/plain_tensor.h"

namespace duet::zip_archive {

static_assert(std::endian::native == std::endian::little, "ZIP fields are little-endian");

namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kDirectoryHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50, kZip64End = 0x06064b50, kZip64Locator = 0x07064b50;
constexpr uint64_t kEndBytes = 22, kLocatorBytes = 20, kZip64EndBytes = 56, kLocalBytes = 30;
constexpr uint64_t kMaxComment = 0xffff;
constexpr uint64_t kMaxDirectory = 100'000'000, kMaxEntries = 1'000'000;
constexpr uint16_t kEncrypted = 1, kStored = 0, kDeflated = 8;
constexpr uint64_t kArchiveTimes = 16;
constexpr uint32_t kNoNumber32 = 0xffffffff;  // stands for a number that ZIP64 has elsewhere

class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  uint16_t u16() { return number<uint16_t>(); }
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  std::string_view text(size_t bytes) {
    if (bytes > rest_.size()) throw MalformedFile{"its ZIP directory ends in the middle of an entry"};
    const std::string_view text = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return text;
  }
  bool empty() const { return rest_.empty(); }

 private:
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, text(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view rest_;
};

std::string read_range(const file_io::FileReader& file, uint64_t offset, uint64_t bytes) {
  expect_file(offset <= file.size() && bytes <= file.size() - offset, "its ZIP directory points beyond its end");
  std::string text(bytes, '\0');
  file.read(offset, text.data(), bytes);
  return text;
}

// ZIP64's numbers stand in an extra field, those alone that do not fit their place.
void read_zip64_numbers(std::string_view extra, Entry& entry) {
  Fields fields(extra);
  while (!fields.empty()) {
    const uint16_t id = fields.u16();
    const uint16_t bytes = fields.u16();
    Fields field(fields.text(bytes));
    if (id != 1) continue;
    for (uint64_t* number : {&entry.unpacked, &entry.bytes, &entry.header}) {
      if (*number == kNoNumber32) *number = field.u64();
    }
  }
}

Entry parse_entry(Fields& fields) {
  if (fields.u32() != kDirectoryHeader) throw MalformedFile{"an entry of its ZIP directory is damaged"};
  Entry entry;
  fields.u32();  // versions
  entry.flags = fields.u16();
  entry.method = fields.u16();
  fields.u32();  // time
  entry.crc = fields.u32();
  entry.bytes = fields.u32();
  entry.unpacked = fields.u32();
  const uint16_t name_bytes = fields.u16(), extra_bytes = fields.u16(), comment_bytes = fields.u16();
  fields.u64();  // disk and attributes
  entry.header = fields.u32();
  entry.name = fields.text(name_bytes);
  const std::string_view extra = fields.text(extra_bytes);
  const bool is_zip64 = entry.bytes == kNoNumber32 || entry.unpacked == kNoNumber32 || entry.header == kNoNumber32;
  if (is_zip64) read_zip64_numbers(extra, entry);
  fields.text(comment_bytes);
  return entry;
}

void check_crc(const Entry& entry, const void* data) {
  const auto crc = ::crc32_z(::crc32(0, nullptr, 0), static_cast<const Bytef*>(data), entry.unpacked);
  expect_file(crc == entry.crc, "entry '", entry.name, "' changed after it was written (its CRC does not match)");
}

}  // namespace

Reader::Reader(const std::string& path) : file_(path) { read_entries(find_directory()); }

// The record at the end of the file, which a comment may follow.
Reader::Directory Reader::find_directory() const {
  const uint64_t tail_bytes = std::min(file_.size(), kEndBytes + kMaxComment);
  const std::string tail = read_range(file_, file_.size() - tail_bytes, tail_bytes);
  for (uint64_t comment = 0; comment + kEndBytes <= tail_bytes; ++comment) {
    const uint64_t at = tail_bytes - kEndBytes - comment;
    Fields record(std::string_view(tail).substr(at));
    if (record.u32() != kEnd) continue;
    record.text(6);  // disks, and the count on this one
    Directory directory;
    directory.count = record.u16();
    directory.bytes = record.u32();
    directory.offset = record.u32();
    if (record.u16() != comment) continue;
    const bool is_zip64 =
        directory.count == 0xffff || directory.bytes == kNoNumber32 || directory.offset == kNoNumber32;
    return is_zip64 ? read_zip64(file_.size() - tail_bytes + at) : directory;
  }
  throw MalformedFile{"it has no ZIP directory at its end: it is cut off or of another format"};
}

Reader::Directory Reader::read_zip64(uint64_t end_record) const {
  if (end_record < kLocatorBytes) throw MalformedFile{"its ZIP64 directory is missing"};
  const std::string locator = read_range(file_, end_record - kLocatorBytes, kLocatorBytes);
  Fields at(locator);
  if (at.u32() != kZip64Locator) throw MalformedFile{"its ZIP64 directory is missing"};
  at.u32();  // disk
  const std::string record = read_range(file_, at.u64(), kZip64EndBytes);
  Fields fields(record);
  if (fields.u32() != kZip64End) throw MalformedFile{"its ZIP64 directory is damaged"};
  fields.text(28);  // size, versions, disks, and the count on this one
  Directory directory;
  directory.count = fields.u64();
  directory.bytes = fields.u64();
  directory.offset = fields.u64();
  return directory;
}

void Reader::read_entries(const Directory& directory) {
  expect_file(directory.bytes <= kMaxDirectory && directory.count <= kMaxEntries, "its ZIP directory lists ",
              directory.count, " entries in ", directory.bytes, " bytes, expected at most ", kMaxEntries, " in ",
              kMaxDirectory);
  const std::string text = read_range(file_, directory.offset, directory.bytes);
  Fields fields(text);
  uint64_t total = 0;
  while (!fields.empty()) {
    Entry entry = parse_entry(fields);
    expect_file(entry.bytes <= file_.size() - total, "entry '", entry.name, "' should have ", entry.bytes,
                " bytes, more than the file holds");
    total += entry.bytes;
    expect_file(by_name_.emplace(entry.name, entries_.size()).second, "it has two entries '", entry.name, "'");
    entries_.push_back(std::move(entry));
  }
  expect_file(entries_.size() == directory.count, "its ZIP directory holds ", entries_.size(), " entries, expected ",
              directory.count);
}

const Entry* Reader::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

// Where the bytes of an entry are, behind the header that says the same as the directory.
uint64_t Reader::begin_of(const Entry& entry) const {
  const std::string header = read_range(file_, entry.header, kLocalBytes);
  Fields fields(header);
  const bool is_header = fields.u32() == kLocalHeader;
  fields.text(22);
  const uint64_t name_bytes = fields.u16(), extra_bytes = fields.u16();
  expect_file(is_header && read_range(file_, entry.header + kLocalBytes, name_bytes) == entry.name, "entry '",
              entry.name, "' is not where the ZIP directory says");
  const uint64_t from = entry.header + kLocalBytes + name_bytes + extra_bytes;
  expect_file(from <= file_.size() && entry.bytes <= file_.size() - from, "entry '", entry.name,
              "' reaches beyond the end of the file");
  return from;
}

void Reader::read(const Entry& entry, void* data) const {
  if (entry.method != kStored || (entry.flags & kEncrypted) != 0 || entry.unpacked != entry.bytes) {
    throw MalformedFile{"entry '" + entry.name + "' is compressed or encrypted, expected one that is stored as it is",
                        "save it again with torch.save, or unpack it and pack it with zip -0"};
  }
  file_.read(begin_of(entry), data, entry.bytes);
  check_crc(entry, data);
}

std::string Reader::text_of(const std::string& name, uint64_t max_bytes) const {
  const Entry* entry = find(name);
  if (entry == nullptr) return {};
  expect_file(entry->bytes <= max_bytes, "entry '", name, "' has ", entry->bytes, " bytes, expected at most ",
              max_bytes);
  std::string text(entry->bytes, '\0');
  read(*entry, text.data());
  return text;
}

void Reader::verify(const Entry& entry) const {
  std::string bytes(entry.bytes, '\0');
  if (entry.method != kDeflated) return read(entry, bytes.data());
  const bool is_small = std::max(entry.bytes, entry.unpacked) <= UINT32_MAX;
  expect_file(is_small && (entry.flags & kEncrypted) == 0, "entry '", entry.name,
              "' is encrypted, or has more than 4 GiB packed");
  file_.read(begin_of(entry), bytes.data(), bytes.size());
  std::string unpacked(entry.unpacked, '\0');
  z_stream stream{};
  stream.next_in = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(unpacked.data());
  stream.avail_out = static_cast<uInt>(unpacked.size());
  expect_file(::inflateInit2(&stream, -MAX_WBITS) == Z_OK, "zlib has no memory to unpack it");
  const int code = ::inflate(&stream, Z_FINISH);
  ::inflateEnd(&stream);
  expect_file(code == Z_STREAM_END && stream.avail_out == 0, "entry '", entry.name, "' does not unpack to the ",
              entry.unpacked, " bytes that the ZIP directory says");
  check_crc(entry, unpacked.data());
}

void verify_archive(const std::string& path) {
  const Reader archive(path);
  FileBudget budget(archive.size(), kArchiveTimes);
  for (const Entry& entry : archive.entries()) budget.charge(entry.unpacked, "its ZIP archive");
  for (const Entry& entry : archive.entries()) archive.verify(entry);
}

const at::Tensor& Storages::get(const std::string& name_in_folder, at::ScalarType type) {
  const std::string name = folder_ + name_in_folder;
  const auto known = read_.find(name);
  if (known != read_.end()) {
    expect_file(known->second.scalar_type() == type, "entry '", name, "' is given two types");
    return known->second;
  }
  const Entry* entry = archive_.find(name);
  expect_file(entry != nullptr, "entry '", name, "' is missing");
  const uint64_t size = c10::elementSize(type);
  expect_file(entry->bytes % size == 0, "entry '", name, "' has ", entry->bytes, " bytes, expected elements of ", type);
  const at::Tensor storage = tensor_from_file({static_cast<int64_t>(entry->bytes / size)}, type, "entry '" + name + "'",
                                              [&](void* data) { archive_.read(*entry, data); });
  return read_.emplace(name, storage).first->second;
}

}  // namespace duet::zip_archive
