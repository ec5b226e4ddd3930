#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace duet {

// All of `text` as a number, in digits as C++ writes them; nothing if it is none or has no room in the type.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace duet
