#include "base/detail/pattern.h"
#include <regex>
#include "base/error.h"

namespace duet {

struct Pattern::Compiled {
  std::string option, text;
  std::regex expression;
};

Pattern::Pattern(const std::string& text) : compiled_(std::make_shared<const Compiled>("", text, std::regex(text))) {}

Pattern::Pattern(const std::string& option, const std::string& text) {
  require<ConfigError>(text.size() <= kLongest, option + " has a pattern of " + std::to_string(text.size()) +
                                                    " characters, expected at most 1000; shorten it");
  try {
    compiled_ = std::make_shared<const Compiled>(option, text, std::regex(text));
  } catch (const std::regex_error& error) {
    throw ConfigError(option + " has '" + text + "', expected a regular expression: " + error.what());
  }
}

std::optional<std::vector<std::string>> Pattern::groups_of(const std::string& text) const {
  std::smatch found;
  if (text.size() > kLongest || !std::regex_match(text, found, compiled_->expression)) return std::nullopt;
  return std::vector<std::string>(found.begin(), found.end());
}

std::string Pattern::prefix_of(const std::string& text) const {
  std::smatch found;
  const std::string front = text.substr(0, kLongest);
  std::regex_search(front, found, compiled_->expression, std::regex_constants::match_continuous);
  return found.str();
}

bool Pattern::found_in(const std::string& text) const {
  return text.size() <= kLongest && std::regex_search(text, compiled_->expression);
}

std::string Pattern::replace_in(const std::string& text, const std::string& replacement) const {
  static const std::regex dollar("\\$"), group(R"(\\g<(\d+)>|\\(\d))");
  const std::string format = std::regex_replace(std::regex_replace(replacement, dollar, "$$$$"), group, "$$$1$2");
  try {
    return std::regex_replace(text, compiled_->expression, format);
  } catch (const std::regex_error& error) {
    throw ConfigError(compiled_->option + ": '" + compiled_->text + "' cannot be applied to '" + text +
                      "': " + error.what());
  }
}

}  // namespace duet
