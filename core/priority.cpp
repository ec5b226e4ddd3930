#include "core/priority.h"
#include <utility>
#include "base/detail/text.h"

namespace duet {

namespace {

const std::vector<std::pair<std::string, int>>& table() {
  static const std::vector<std::pair<std::string, int>> kTable = {
      {"HIGHEST", kHighest}, {"VERY_HIGH", kVeryHigh},       {"HIGH", kHigh}, {"ABOVE_NORMAL", kAboveNormal},
      {"NORMAL", kNormal},   {"BELOW_NORMAL", kBelowNormal}, {"LOW", kLow},   {"VERY_LOW", kVeryLow},
      {"LOWEST", kLowest}};
  return kTable;
}

}  // namespace

std::optional<int> parse_priority(const std::string& text) {
  for (const auto& [name, number] : table()) {
    if (name == text) return number;
  }
  const std::optional<int> number = parse_number<int>(text);
  return number && *number >= kHighest && *number <= kLowest ? number : std::nullopt;
}

std::string priority_text(int priority) {
  for (const auto& [name, number] : table()) {
    if (number == priority) return name + " (" + std::to_string(priority) + ")";
  }
  return std::to_string(priority);
}

const std::vector<std::string>& priority_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const auto& entry : table()) names.push_back(entry.first);
    return names;
  }();
  return kNames;
}

}  // namespace duet
