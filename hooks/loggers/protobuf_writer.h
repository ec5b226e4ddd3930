#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace duet {

// `text` with what is not UTF-8 replaced: protobuf readers refuse strings that are not.
std::string valid_utf8(const std::string& text);

// One protobuf message, encoded by hand: LibTorch ships protobuf headers of its own that shadow any other's.
class ProtobufWriter {
 public:
  // int32, int64, bool and enum fields.
  ProtobufWriter& integer(int field, int64_t value) {
    key(field, kVarint);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  ProtobufWriter& float32(int field, float value) {
    key(field, kFixed32);
    fixed(std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  ProtobufWriter& float64(int field, double value) {
    key(field, kFixed64);
    fixed(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  ProtobufWriter& bytes(int field, std::string_view value) {
    key(field, kBytes);
    varint(value.size());
    data_.append(value);
    return *this;
  }
  ProtobufWriter& text(int field, const std::string& value) { return bytes(field, valid_utf8(value)); }
  ProtobufWriter& message(int field, const ProtobufWriter& value) { return bytes(field, value.data_); }

  const std::string& data() const { return data_; }

 private:
  enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  void key(int field, WireType type) { varint(static_cast<uint64_t>(field) << 3 | type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) data_.push_back(static_cast<char>(value | 0x80));
    data_.push_back(static_cast<char>(value));
  }
  void fixed(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) data_.push_back(static_cast<char>(value >> (8 * i)));
  }

  std::string data_;
};

}  // namespace duet
