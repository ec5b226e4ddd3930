#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "hooks/detail/shared.h"

namespace duet {

// CRC-32C (Castagnoli), as iSCSI and TensorBoard's files use it.
inline uint32_t crc32c(std::string_view bytes) {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed
  uint32_t sum = ~uint32_t{0};
  for (const char byte : bytes) {
    sum ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? kPolynomial : 0);
  }
  return ~sum;
}

// `text` with what is not UTF-8 replaced: protobuf readers refuse strings that are not.
inline std::string valid_utf8(const std::string& text) {
  return nlohmann::json::parse(json_text(text)).get<std::string>();
}

// The low `bytes` bytes of `value`, lowest first.
inline std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

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
    data_ += little_endian(std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  ProtobufWriter& float64(int field, double value) {
    key(field, kFixed64);
    data_ += little_endian(std::bit_cast<uint64_t>(value), 8);
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

  std::string data_;
};

// Of this machine; empty: unknown.
inline std::string host_name() {
  std::array<char, 256> host{};
  return gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "";
}

}  // namespace duet
