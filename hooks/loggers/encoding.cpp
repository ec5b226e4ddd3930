#include "hooks/loggers/encoding.h"
#include <array>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "hooks/detail/shared.h"

namespace duet {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? kPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  uint32_t sum = ~uint32_t{0};
  for (const char byte : bytes) sum = sum >> 8 ^ kTable[(sum ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~sum;
}

std::string valid_utf8(const std::string& text) { return nlohmann::json::parse(json_text(text)).get<std::string>(); }

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::string host_name() {
  std::array<char, 256> host{};
  return gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "";
}

}  // namespace duet
