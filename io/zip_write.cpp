#include <algorithm>
#include <zlib.h>
#include "io/zip_archive.h"

namespace duet::zip_archive {

namespace {

constexpr uint64_t kAlignment = 64;  // of the bytes of each part, as torch.save has it
constexpr uint64_t kLocalBytes = 30, kPaddingHeader = 4;
constexpr uint16_t kUtf8Names = 0x0800;
constexpr uint16_t kDate = 0x21;  // 1980-01-01, the earliest there is: no clock goes into the file
constexpr uint32_t kNoNumber32 = 0xffffffff;

// Little-endian fields one after the other.
class Record {
 public:
  Record& u16(uint16_t value) { return number(value, 2); }
  Record& u32(uint32_t value) { return number(value, 4); }
  Record& u64(uint64_t value) { return number(value, 8); }
  Record& text(const std::string& text) {
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Record& number(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }

  std::string bytes_;
};

struct Placed {
  const Part* part = nullptr;
  uint64_t header = 0;  // offset
  uint32_t crc = 0;
  bool large = false;  // needs ZIP64
  std::string local;   // header, name and padding
};

uint32_t crc_of(const Part& part) {
  return static_cast<uint32_t>(
      ::crc32_z(::crc32_z(0, nullptr, 0), static_cast<const unsigned char*>(part.data), part.bytes));
}

// What the local header and the directory say alike.
Record& common_fields(Record& record, const Placed& placed) {
  const uint32_t bytes = placed.large ? kNoNumber32 : static_cast<uint32_t>(placed.part->bytes);
  return record.u16(kUtf8Names)
      .u16(0)
      .u16(0)
      .u16(kDate)
      .u32(placed.crc)
      .u32(bytes)
      .u32(bytes)
      .u16(static_cast<uint16_t>(placed.part->name.size()));
}

std::string local_header(const Placed& placed) {
  Record extra;
  if (placed.large) extra.u16(1).u16(16).u64(placed.part->bytes).u64(placed.part->bytes);
  const uint64_t end = placed.header + kLocalBytes + placed.part->name.size() + extra.bytes().size() + kPaddingHeader;
  const uint64_t padding = (kAlignment - end % kAlignment) % kAlignment;
  extra.u16(0x4246).u16(static_cast<uint16_t>(padding)).text(std::string(padding, 'Z'));  // "FB", as PyTorch pads
  Record record;
  record.u32(0x04034b50).u16(placed.large ? 45 : 20);
  common_fields(record, placed).u16(static_cast<uint16_t>(extra.bytes().size()));
  return record.text(placed.part->name).text(extra.bytes()).bytes();
}

std::string directory_entry(const Placed& placed, uint64_t zip64_from) {
  const bool far = placed.header >= zip64_from;
  Record extra;
  if (placed.large || far) {
    extra.u16(1).u16(static_cast<uint16_t>((placed.large ? 16 : 0) + (far ? 8 : 0)));
    if (placed.large) extra.u64(placed.part->bytes).u64(placed.part->bytes);
    if (far) extra.u64(placed.header);
  }
  const uint16_t version = placed.large || far ? 45 : 20;
  Record record;
  record.u32(0x02014b50).u16(version).u16(version);
  common_fields(record, placed).u16(static_cast<uint16_t>(extra.bytes().size()));
  record.u16(0).u16(0).u16(0).u32(0);  // comment, disk, attributes
  record.u32(far ? kNoNumber32 : static_cast<uint32_t>(placed.header));
  return record.text(placed.part->name).text(extra.bytes()).bytes();
}

std::string end_records(uint64_t count, uint64_t directory, uint64_t directory_bytes) {
  Record record;
  record.u32(0x06064b50).u64(44).u16(45).u16(45).u32(0).u32(0);
  record.u64(count).u64(count).u64(directory_bytes).u64(directory);
  record.u32(0x07064b50).u32(0).u64(directory + directory_bytes).u32(1);
  const auto small_count = static_cast<uint16_t>(std::min<uint64_t>(count, 0xffff));
  record.u32(0x06054b50).u16(0).u16(0).u16(small_count).u16(small_count);
  record.u32(static_cast<uint32_t>(std::min<uint64_t>(directory_bytes, kNoNumber32)));
  record.u32(static_cast<uint32_t>(std::min<uint64_t>(directory, kNoNumber32)));
  return record.u16(0).bytes();
}

}  // namespace

void write(const std::string& path, const std::vector<Part>& parts, uint64_t zip64_from) {
  std::vector<Placed> placed;
  uint64_t position = 0;
  for (const Part& part : parts) {
    Placed next;
    next.part = &part;
    next.header = position;
    next.crc = crc_of(part);
    next.large = part.bytes >= zip64_from;
    next.local = local_header(next);
    position += next.local.size() + part.bytes;
    placed.push_back(std::move(next));
  }
  std::string end;
  for (const Placed& part : placed) end += directory_entry(part, zip64_from);
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
