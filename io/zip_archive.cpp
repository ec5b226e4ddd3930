#include "io/zip_archive.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <zlib.h>

namespace duet::zip_archive {

static_assert(std::endian::native == std::endian::little, "ZIP fields are little-endian");

namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kDirectoryHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50, kZip64End = 0x06064b50, kZip64Locator = 0x07064b50;
constexpr uint64_t kEndBytes = 22, kLocatorBytes = 20, kZip64EndBytes = 56, kLocalBytes = 30;
constexpr uint64_t kMaxComment = 0xffff;
constexpr uint64_t kMaxDirectory = 100'000'000, kMaxEntries = 1'000'000;
constexpr uint16_t kEncrypted = 1;
constexpr uint32_t kNoNumber32 = 0xffffffff;  // stands for a number that ZIP64 has elsewhere
constexpr size_t kChunk = size_t{1} << 20;    // hashed while it is in the cache

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
  if (entry.method != 0 || (entry.flags & kEncrypted) != 0 || entry.unpacked != entry.bytes) {
    throw MalformedFile{"entry '" + entry.name + "' is compressed or encrypted, expected one that is stored as it is",
                        "save it again with torch.save, or unpack it and pack it with zip -0"};
  }
  uint64_t from = begin_of(entry);
  auto* next = static_cast<unsigned char*>(data);
  uLong crc = ::crc32(0, nullptr, 0);
  for (uint64_t left = entry.bytes; left > 0;) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(kChunk, left));
    file_.read(from, next, count);
    crc = ::crc32(crc, next, static_cast<uInt>(count));
    next += count;
    from += count;
    left -= count;
  }
  expect_file(crc == entry.crc, "entry '", entry.name, "' changed after it was written (its CRC does not match)");
}

namespace {

constexpr uint64_t kAlignment = 64;  // of the bytes of each part, as torch.save has it
constexpr uint64_t kPaddingHeader = 4;
constexpr uint16_t kUtf8Names = 0x0800;
constexpr uint16_t kZip64Version = 45;
constexpr uint16_t kDate = 0x21;  // 1980-01-01, the earliest there is: no clock goes into the file

class Record {
 public:
  Record& u16(uint16_t value) { return number(value); }
  Record& u32(uint32_t value) { return number(value); }
  Record& u64(uint64_t value) { return number(value); }
  Record& text(const std::string& text) {
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  template <class T>
  Record& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }

  std::string bytes_;
};

struct Placed {
  const Part* part = nullptr;
  uint64_t header = 0;  // offset
  uint32_t crc = 0;
  std::string local;  // header, name and padding
};

uint32_t crc_of(const Part& part) {
  return static_cast<uint32_t>(
      ::crc32_z(::crc32_z(0, nullptr, 0), static_cast<const unsigned char*>(part.data), part.bytes));
}

// Numbers always go by ZIP64, whatever their size: one form, which no small test leaves out.
Record& common_fields(Record& record, const Placed& placed, const Record& extra) {
  return record.u16(kUtf8Names)
      .u16(0)
      .u16(0)
      .u16(kDate)
      .u32(placed.crc)
      .u32(kNoNumber32)
      .u32(kNoNumber32)
      .u16(static_cast<uint16_t>(placed.part->name.size()))
      .u16(static_cast<uint16_t>(extra.bytes().size()));
}

std::string local_header(const Placed& placed) {
  Record extra;
  extra.u16(1).u16(16).u64(placed.part->bytes).u64(placed.part->bytes);
  const uint64_t end = placed.header + kLocalBytes + placed.part->name.size() + extra.bytes().size() + kPaddingHeader;
  const uint64_t padding = (kAlignment - end % kAlignment) % kAlignment;
  extra.u16(0x4246).u16(static_cast<uint16_t>(padding)).text(std::string(padding, 'Z'));  // "FB", as PyTorch pads
  Record record;
  record.u32(kLocalHeader).u16(kZip64Version);
  return common_fields(record, placed, extra).text(placed.part->name).text(extra.bytes()).bytes();
}

std::string directory_entry(const Placed& placed) {
  Record extra;
  extra.u16(1).u16(24).u64(placed.part->bytes).u64(placed.part->bytes).u64(placed.header);
  Record record;
  record.u32(kDirectoryHeader).u16(kZip64Version).u16(kZip64Version);
  common_fields(record, placed, extra);
  record.u16(0).u16(0).u16(0).u32(0).u32(kNoNumber32);  // comment, disk, attributes, offset
  return record.text(placed.part->name).text(extra.bytes()).bytes();
}

std::string end_records(uint64_t count, uint64_t directory, uint64_t directory_bytes) {
  Record record;
  record.u32(kZip64End).u64(44).u16(kZip64Version).u16(kZip64Version).u32(0).u32(0);
  record.u64(count).u64(count).u64(directory_bytes).u64(directory);
  record.u32(kZip64Locator).u32(0).u64(directory + directory_bytes).u32(1);
  record.u32(kEnd).u16(0).u16(0).u16(0xffff).u16(0xffff).u32(kNoNumber32).u32(kNoNumber32);
  return record.u16(0).bytes();
}

}  // namespace

void write(const std::string& path, const std::vector<Part>& parts) {
  std::vector<Placed> placed;
  uint64_t position = 0;
  for (const Part& part : parts) {
    Placed next;
    next.part = &part;
    next.header = position;
    next.crc = crc_of(part);
    next.local = local_header(next);
    position += next.local.size() + part.bytes;
    placed.push_back(std::move(next));
  }
  std::string end;
  for (const Placed& part : placed) end += directory_entry(part);
  end += end_records(placed.size(), position, end.size());

  file_io::replace_file(path, position + end.size(), [&](file_io::FileWriter& file) {
    for (const Placed& part : placed) {
      file.write(part.local.data(), part.local.size());
      file.write(part.part->data, part.part->bytes);
    }
    file.write(end.data(), end.size());
  });
}

}  // namespace duet::zip_archive
