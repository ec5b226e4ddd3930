#include "cli/config/loop_config.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "cli/config/config_options.h"

namespace duet {

namespace {

// Counts are multiplied with one another.
constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

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

double read_seconds(const ConfigNode& node, const std::string& key) {
  const std::optional<std::string> text = node.find<std::string>(key);
  if (!text) return 0;
  std::optional<double> seconds = parse_number<double>(*text);
  if (!seconds) seconds = text->find(':') != std::string::npos ? parse_clock(*text) : parse_units(*text);
  constexpr double kCentury = 3.2e9;
  if (seconds && *seconds > 0 && *seconds < kCentury) return *seconds;
  node.fail_value(key, "a time above 0: seconds, 2h, 1h30m, or days:hours:minutes:seconds");
}

// As in Lightning a share has a dot: 1 is one batch, 1.0 all of them.
BatchLimit read_limit(const ConfigNode& node, const std::string& key) {
  BatchLimit limit;
  limit.node = node;
  limit.key = key;
  const std::optional<std::string> text = node.find<std::string>(key);
  if (!text) return limit;
  if (const std::optional<int64_t> count = parse_number<int64_t>(*text)) {
    if (*count >= 1 && *count <= kMaxInt) limit.count = *count;
  } else if (const std::optional<double> share = parse_number<double>(*text)) {
    if (*share > 0 && *share <= 1) limit.share = *share;
  }
  if (limit.count > 0 || limit.share > 0) return limit;
  node.fail_value(key, "a count of at least 1, or a share above 0.0 up to 1.0; remove the key to take all");
}

// true means one step.
int64_t read_dry_run(const ConfigNode& node) {
  const std::optional<std::string> text = node.find<std::string>("fast_dev_run");
  if (!text || *text == "false" || *text == "0") return 0;
  if (*text == "true") return 1;
  const std::optional<int64_t> steps = parse_number<int64_t>(*text);
  if (steps && *steps >= 1 && *steps <= kMaxInt) return *steps;
  node.fail_value("fast_dev_run", "true, false or a number of steps");
}

}  // namespace

int64_t BatchLimit::batches_of(const DataSource& data) const {
  const int64_t batches = as_written(data);
  if (most == 0) return batches;
  return batches == 0 ? most : std::min(batches, most);
}

int64_t BatchLimit::as_written(const DataSource& data) const {
  if (share <= 0) return count;
  const int64_t all = data.batches_per_epoch();
  if (all <= 0) node.fail(key, "is a share, but the data has no known number of batches; give a count");
  const auto batches = static_cast<int64_t>(std::floor(static_cast<double>(all) * share));
  if (batches >= 1) return batches;
  node.fail(key, c10::str("is ", share, " of ", all, " batches, which is not one; give a larger share or a count"));
}

LoopConfig read_loop(const ConfigNode& node) {
  LoopConfig config;
  config.loop = read_options<LoopOptions>(node);
  config.loop.max_seconds = read_seconds(node, "max_time");
  config.limits.train = read_limit(node, "limit_train_batches");
  config.limits.val = read_limit(node, "limit_val_batches");
  config.limits.test = read_limit(node, "limit_test_batches");
  config.limits.predict = read_limit(node, "limit_predict_batches");
  config.dry_run = read_dry_run(node);
  return config;
}

}  // namespace duet
