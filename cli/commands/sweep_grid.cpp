#include <algorithm>
#include <cctype>
#include <set>
#include "base/error.h"
#include "cli/commands/commands.h"

namespace duet {

namespace {

struct SweptKey {
  std::string key;
  std::vector<std::string> values;
};

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts = {""};
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth == 0) {
      parts.emplace_back();
      continue;
    }
    parts.back() += c;
  }
  return parts;
}

// The last part of the key, or as many as tell it from the others.
std::string short_name(const std::string& key, const std::vector<SweptKey>& keys) {
  std::size_t begin = key.rfind('.');
  while (begin != std::string::npos) {
    const std::string end = key.substr(begin);
    const auto alike = [&](const SweptKey& other) { return ("." + other.key).ends_with(end); };
    if (std::count_if(keys.begin(), keys.end(), alike) == 1) return key.substr(begin + 1);
    begin = begin == 0 ? std::string::npos : key.rfind('.', begin - 1);
  }
  return key;
}

// Any value as a part of a folder's name.
std::string file_name(std::string text) {
  for (char& c : text) {
    const bool keeps =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string("=,.+-_").find(c) != std::string::npos;
    if (!keeps) c = '_';
  }
  return text;
}

// Folders of their own, with names that a file system takes.
void make_names_differ(std::vector<SweepPoint>& points) {
  constexpr std::size_t kLongest = 200;
  std::set<std::string> taken;
  for (SweepPoint& point : points) {
    const std::string name = point.name.substr(0, kLongest);
    point.name = name;
    for (int number = 2; !taken.insert(point.name).second; ++number) point.name = name + "~" + std::to_string(number);
  }
}

std::vector<SweptKey> read_keys(const std::vector<std::string>& assignments, std::vector<std::string>& fixed) {
  std::vector<SweptKey> keys;
  std::set<std::string> seen;
  for (const std::string& assignment : assignments) {
    const std::size_t equals = assignment.find('=');
    const std::string key = assignment.substr(0, equals);
    if (!seen.insert(key).second) throw ConfigError("[sweep] found '" + key + "' twice, expected each key once");
    const std::vector<std::string> values =
        equals == std::string::npos ? std::vector<std::string>{} : split_at_commas(assignment.substr(equals + 1));
    if (values.size() < 2) {
      fixed.push_back(assignment);
      continue;
    }
    if (std::set<std::string>(values.begin(), values.end()).size() != values.size() ||
        std::count(values.begin(), values.end(), "") > 0) {
      throw ConfigError("[sweep] found '" + assignment + "', expected values that differ, none of them empty");
    }
    if (key == "work_dir")
      throw ConfigError("[sweep] found several work_dir, expected one: the runs are folders in it");
    keys.push_back({key, values});
  }
  return keys;
}

}  // namespace

std::vector<SweepPoint> sweep_points(const std::vector<std::string>& assignments) {
  std::vector<std::string> fixed;
  const std::vector<SweptKey> keys = read_keys(assignments, fixed);
  if (keys.empty()) {
    throw ConfigError(
        "[sweep] found no key with several values, expected one such as optim_wrapper.optimizer.lr=0.1,0.01");
  }
  std::vector<SweepPoint> points = {{"", fixed}};
  for (const SweptKey& key : keys) {
    std::vector<SweepPoint> next;
    for (const SweepPoint& point : points) {
      for (const std::string& value : key.values) {
        next.push_back(point);
        next.back().name += (point.name.empty() ? "" : ",") + file_name(short_name(key.key, keys) + "=" + value);
        next.back().overrides.push_back(key.key + "=" + value);
      }
    }
    points = std::move(next);
  }
  make_names_differ(points);
  return points;
}

}  // namespace duet
