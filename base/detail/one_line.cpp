#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include "base/detail/text.h"

// Beside text.cpp, without LibTorch's headers: the logger needs it.
namespace duet {

namespace {

// Bytes of the UTF-8 character that `text` begins with, and its code; 0 bytes if there is none.
struct Character {
  std::size_t bytes = 0;
  uint32_t code = 0;
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t bytes = byte(0) < 0x80             ? 1
                            : (byte(0) & 0xE0) == 0xC0 ? 2
                            : (byte(0) & 0xF0) == 0xE0 ? 3
                            : (byte(0) & 0xF8) == 0xF0 ? 4
                                                       : 0;
  if (bytes == 0 || bytes > text.size()) return {};
  uint32_t code = bytes == 1 ? byte(0) : byte(0) & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  static constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_valid = code >= kSmallest[bytes] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  return is_valid ? Character{bytes, code} : Character{};
}

// C0, DEL and C1; marks and overrides of direction; line and paragraph separators; the byte order mark.
bool is_obeyed(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x061C || (code >= 0x200B && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

std::string escaped(uint32_t code) {
  char text[12];
  std::snprintf(text, sizeof text, code < 0x100 ? "\\x%02x" : "\\u%04x", static_cast<unsigned>(code));
  return text;
}

// Takes the first character off `text`: as it is, or escaped.
std::string take_character(std::string_view& text) {
  const Character next = first_character(text);
  const std::string_view bytes = text.substr(0, std::max<std::size_t>(next.bytes, 1));
  text.remove_prefix(bytes.size());
  if (next.bytes == 0) return escaped(static_cast<unsigned char>(bytes[0]));
  return is_obeyed(next.code) ? escaped(next.code) : std::string(bytes);
}

}  // namespace

std::string one_line(std::string_view text, std::size_t most) {
  std::string line;
  while (!text.empty()) {
    if (line.size() >= most) return line + "...";
    line += take_character(text);
  }
  return line;
}

std::string escape_control_chars(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    if (text.front() == '\n' || text.front() == '\t') {
      lines += text.front();
      text.remove_prefix(1);
    } else {
      lines += take_character(text);
    }
  }
  return lines;
}

}  // namespace duet
