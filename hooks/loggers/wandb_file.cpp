#include "hooks/loggers/wandb_file.h"
#include <algorithm>
#include <utility>
#include <zlib.h>
#include "base/error.h"

namespace duet {

namespace {

constexpr uint64_t kBlock = 32768;
constexpr uint64_t kPieceHeader = 7;  // sum, length, place in the record
constexpr std::string_view kFileHeader{":W&B\xe1\xbe\0", 7};

enum Place : uint8_t { kWhole = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

Place place_of(bool first, bool last) {
  if (first) return last ? kWhole : kFirst;
  return last ? kLast : kMiddle;
}

uint32_t sum_of(Place place, std::string_view data) {
  const Bytef kind = place;
  const auto* bytes = reinterpret_cast<const Bytef*>(data.data());
  return static_cast<uint32_t>(crc32_z(crc32(0, &kind, 1), bytes, data.size()));
}

std::string piece(Place place, std::string_view data) {
  std::string bytes;
  const uint32_t sum = sum_of(place, data);
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(sum >> (8 * i)));
  for (int i = 0; i < 2; ++i) bytes.push_back(static_cast<char>(data.size() >> (8 * i)));
  bytes.push_back(static_cast<char>(place));
  return bytes.append(data);
}

file_io::FileWriter create(const std::string& path) try {
  return file_io::FileWriter(path, 0);
} catch (const file_io::IoError& error) {
  throw Error(std::string("[WandbSink] ") + error.what() + "; choose another work_dir or leave the sink out", 1);
}

}  // namespace

WandbFile::WandbFile(std::string path) : path_(std::move(path)), file_(create(path_)) {
  write(std::string(kFileHeader));
}

void WandbFile::append(int kind, const ProtobufWriter& message) {
  constexpr int kNumber = 1;
  write(framed(ProtobufWriter().integer(kNumber, ++records_).message(kind, message).data()));
}

std::string WandbFile::framed(std::string_view record) const {
  std::string bytes;
  uint64_t room = kBlock - size_ % kBlock;
  if (room < kPieceHeader) {
    bytes.assign(room, '\0');
    room = kBlock;
  }
  bool first = true;
  do {
    const std::string_view part = record.substr(0, std::min(record.size(), room - kPieceHeader));
    record.remove_prefix(part.size());
    bytes += piece(place_of(first, record.empty()), part);
    first = false;
    room = kBlock;
  } while (!record.empty());
  return bytes;
}

void WandbFile::write(const std::string& bytes) try {
  file_.write(bytes.data(), bytes.size());
  size_ += bytes.size();
} catch (const file_io::IoError& error) {
  throw Error(std::string("[WandbSink] ") + error.what() + "; make room or leave the sink out", 1);
}

}  // namespace duet
