#include "cli/config/duration.h"
#include <map>
#include <optional>
#include <sstream>
#include <vector>
#include "base/detail/text.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

// "00:12:00:00" as Lightning writes it: days, hours, minutes, seconds; or without the days.
std::optional<double> parse_clock(const std::string& text) {
  std::vector<double> parts;
  std::istringstream words(text);
  for (std::string part; std::getline(words, part, ':');) {
    const std::optional<int64_t> number = parse_number<int64_t>(part);
    if (!number || *number < 0) return std::nullopt;
    parts.push_back(static_cast<double>(*number));
  }
  if (parts.size() == 3) parts.insert(parts.begin(), 0);
  if (parts.size() != 4 || text.back() == ':') return std::nullopt;
  return ((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3];
}

}  // namespace

double read_seconds(const ConfigNode& node, const std::string& key) {
  const std::optional<std::string> text = node.find<std::string>(key);
  if (!text) return 0;
  static const std::map<std::string, double> kUnits = {{"d", 86400}, {"h", 3600}, {"m", 60}, {"min", 60}, {"s", 1}};
  std::optional<double> seconds = parse_number<double>(*text);
  if (!seconds) seconds = text->find(':') != std::string::npos ? parse_clock(*text) : sum_of_units(*text, kUnits);
  constexpr double kCentury = 3.2e9;
  if (seconds && *seconds > 0 && *seconds < kCentury) return *seconds;
  node.fail_value(key, "a time above 0: seconds, 2h, 1h30m, or days:hours:minutes:seconds");
}

}  // namespace duet
