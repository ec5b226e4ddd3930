#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace duet {

// A regular expression as ECMAScript writes them. Compiled in one place: <regex> costs each file that includes it
// seconds. Texts of more than kLongest characters match nothing, since std::regex recurses once per character.
class Pattern {
 public:
  static constexpr std::size_t kLongest = 1000;

  explicit Pattern(const std::string& text);
  // One that a user wrote; `option` is what messages call it. Throws ConfigError if it is none.
  Pattern(const std::string& option, const std::string& text);

  // The groups of `text`, empty those that took no part, if all of it matches; groups[0] is `text`.
  std::optional<std::vector<std::string>> groups_of(const std::string& text) const;
  bool matches(const std::string& text) const { return groups_of(text).has_value(); }
  // What matches where `text` begins; empty if nothing does.
  std::string prefix_of(const std::string& text) const;
  bool found_in(const std::string& text) const;
  // Each match replaced by `replacement`, in which \1 and \g<1> are groups, as in Python's re.sub. Throws ConfigError
  // if the expression is too much for this text.
  std::string replace_in(const std::string& text, const std::string& replacement) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace duet
