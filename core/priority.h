#pragma once

#include <optional>
#include <string>
#include <vector>

namespace duet {

// Low runs first. Any integer in [0, 100] is allowed.
enum Priority : int {
  kHighest = 0,
  kVeryHigh = 10,
  kHigh = 30,
  kAboveNormal = 40,
  kNormal = 50,
  kBelowNormal = 60,
  kLow = 70,
  kVeryLow = 90,
  kLowest = 100,
};

// The number of "HIGHEST", "NORMAL", ... or of "0" to "100"; nothing for another text.
std::optional<int> parse_priority(const std::string& text);
// "NORMAL (50)", or "65" for a number without a name.
std::string priority_text(int priority);
const std::vector<std::string>& priority_names();

}  // namespace duet
