#include "cli/config/duration.h"
#include <algorithm>
#include <optional>
#include <sstream>
#include <vector>
#include "base/detail/text.h"

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

double seconds_of(const std::string& unit) {
  if (unit == "d") return 86400;
  if (unit == "h") return 3600;
  if (unit == "m" || unit == "min") return 60;
  return unit == "s" ? 1 : 0;
}

// "1h30m", "1.5 h", "2d 6h"
std::optional<double> parse_units(const std::string& text) {
  double seconds = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789.", at), text.size());
    const std::size_t unit = std::min(text.find_first_not_of(' ', digits), text.size());
    const std::size_t end = std::min(text.find_first_of("0123456789. ", unit), text.size());
    const std::optional<double> number = parse_number<double>(text.substr(at, digits - at));
    const double factor = seconds_of(text.substr(unit, end - unit));
    if (!number || factor == 0) return std::nullopt;
    seconds += *number * factor;
    at = std::min(text.find_first_not_of(' ', end), text.size());
  }
  return seconds;
}

}  // namespace

double read_seconds(const ConfigNode& node, const std::string& key) {
  const std::optional<std::string> text = node.find<std::string>(key);
  if (!text) return 0;
  std::optional<double> seconds = parse_number<double>(*text);
  if (!seconds) seconds = text->find(':') != std::string::npos ? parse_clock(*text) : parse_units(*text);
  constexpr double kCentury = 3.2e9;
  if (seconds && *seconds > 0 && *seconds < kCentury) return *seconds;
  node.fail_value(key, "a time above 0: seconds, 2h, 1h30m, or days:hours:minutes:seconds");
}

}  // namespace duet
