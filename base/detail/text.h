#pragma once

#include <charconv>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace duet {

// The candidate with the smallest edit distance to `word`, case ignored, or that begins or ends with it; empty if none
// is near: more slips than a third of the letters make another word of it.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// The candidate that is `word` but for a slip or two; empty if none is that near.
std::string misspelling_of(std::string_view word, const std::vector<std::string>& candidates);

// As 2026-01-31T12:00:00Z.
std::string utc_now();

// "a, b, c"; "nothing" for an empty list.
std::string join(const std::vector<std::string>& words);

// The keys of a map, or what else stands first in pairs: the names of tensors.
template <class Pairs>
std::vector<std::string> keys_in(const Pairs& pairs) {
  std::vector<std::string> names;
  for (const auto& pair : pairs) names.emplace_back(pair.first);
  return names;
}

// "a, b, c, d and 3 more".
std::string join_first(std::vector<std::string> words, std::size_t most = 4);

// "; did you mean 'b'?"; empty if none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// "known: a, b, c; did you mean 'b'?"
std::string known_and_nearest(std::string_view word, const std::vector<std::string>& candidates);

// `text` from a file or a stranger as a part of one line: what a terminal would obey (control characters, those that
// turn the direction of text) and what is no UTF-8 stands as \x1b or \u202e, and what follows the first `most` bytes is
// left out.
std::string one_line(std::string_view text, std::size_t most = 1000);

// The same for a message of several lines: their ends and tabs stay, and nothing is left out.
std::string escape_control_chars(std::string_view text);

// All of `text` as a number, in digits as C++ writes them; nothing if it is none or has no room in the type.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

// The first line of an error's text, without LibTorch's stack trace. For the part in brackets of an error of our own.
std::string first_line(const std::exception& error);

// The text of any exception, LibTorch's without their stack trace. `error` is not null.
std::string text_of(const std::exception_ptr& error);

// What `call` throws; null if it returns.
template <class Call>
std::exception_ptr caught(const Call& call) {
  try {
    call();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace duet
