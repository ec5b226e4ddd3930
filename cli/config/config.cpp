#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <sstream>
#include <type_traits>
#include <c10/util/StringUtil.h>
#include "base/detail/pattern.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/config_data.h"

namespace duet {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

namespace {

// Whether YAML reads the plain scalar `text` as a number, or as true or false.
bool is_number_or_bool(const std::string& text) {
  static const Pattern kTyped(
      R"([-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|0x[\da-fA-F]+|0o[0-7]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|)"
      R"(true|True|TRUE|false|False|FALSE)");
  return kTyped.matches(text);
}

}  // namespace

std::string describe(const Data& data) {
  switch (data.kind) {
    case Kind::kAbsent: return "missing";
    case Kind::kNull: return "null";
    case Kind::kValue: return data.quoted || !is_number_or_bool(data.text) ? "'" + data.text + "'" : data.text;
    case Kind::kList: return c10::str("a list of ", data.items.size());
    case Kind::kMap: return "a map";
  }
  return {};
}

void fail_at(const Data& data, const std::string& message) {
  throw ConfigError(
      c10::str("[Config] ", data.origin, ": ", data.path.empty() ? "the config" : data.path, " ", message));
}

ConfigNode::ConfigNode() : data_(std::make_shared<Data>()) {}

Kind ConfigNode::kind() const { return data_->kind; }
const std::string& ConfigNode::origin() const { return data_->origin; }
const std::string& ConfigNode::path() const { return data_->path; }
const std::string& ConfigNode::text() const { return data_->text; }

bool ConfigNode::is_empty() const {
  if (data_->kind == Kind::kValue) return false;
  return std::all_of(data_->items.begin(), data_->items.end(),
                     [](const auto& item) { return item.second->kind == Kind::kAbsent; });
}

void ConfigNode::require_map() const {
  if (data_->kind == Kind::kValue || data_->kind == Kind::kList) {
    fail_at(*data_, "is " + describe(*data_) + ", expected a map of 'key: value', such as {type: ...}");
  }
}

bool ConfigNode::has(const std::string& key) const {
  const auto found = data_->kind == Kind::kMap ? data_->get(key) : nullptr;
  return found && found->kind != Kind::kAbsent;
}

ConfigNode ConfigNode::child(const std::string& key) const {
  require_map();
  if (!data_->knows(key)) data_->known.push_back(key);
  if (const auto found = data_->get(key)) return ConfigNode(found);
  auto absent = std::make_shared<Data>();
  absent->origin = data_->origin;
  absent->path = join_path(data_->path, key);
  data_->items.emplace_back(key, absent);
  return ConfigNode(absent);
}

std::vector<std::string> ConfigNode::keys() const {
  require_map();
  std::vector<std::string> keys;
  for (const auto& [key, item] : data_->items) {
    if (item->kind != Kind::kAbsent) keys.push_back(key);
  }
  return keys;
}

std::vector<ConfigNode> ConfigNode::list(const std::string& key) const {
  const ConfigNode node = child(key);
  std::vector<ConfigNode> nodes;
  if (node.data_->is_unset()) return nodes;
  if (node.kind() != Kind::kList) node.fail_value("", "a list, such as [{type: ...}]");
  for (const auto& item : node.data_->items) nodes.push_back(ConfigNode(item.second));
  return nodes;
}

std::vector<ConfigNode> ConfigNode::one_or_list(const std::string& key) const {
  const ConfigNode node = child(key);
  if (node.kind() == Kind::kMap || node.kind() == Kind::kValue) return {node};
  return list(key);
}

void ConfigNode::reject_unknown() const {
  if (data_->kind != Kind::kMap && data_->kind != Kind::kList) return;
  for (const auto& [key, item] : data_->items) {
    if (data_->kind == Kind::kMap && !data_->knows(key)) {
      throw ConfigError(c10::str("[Config] ", item->origin, ": unknown key '", key, "' in ",
                                 data_->path.empty() ? "the config" : data_->path, "; ",
                                 known_and_nearest(key, data_->known)));
    }
    if (!item->check_later) ConfigNode(item).reject_unknown();
  }
}

void ConfigNode::check_later() const { data_->check_later = true; }

void ConfigNode::located(const std::function<void()>& check) const {
  const auto placed = [this](const Error& error) {
    const std::string text = error.what();
    if (text.starts_with("[Config]")) return text;  // it names a closer place
    return c10::str("[Config] ", data_->origin, ": ", data_->path, ": ", text);
  };
  try {
    check();
  } catch (const ConfigError& error) {
    throw ConfigError(placed(error));
  } catch (const DataError& error) {
    throw DataError(placed(error));
  }
}

void ConfigNode::fail_missing(const std::string& key, const std::string& way_out) const {
  const ConfigNode missing = child(key);
  std::vector<std::string> unread;
  for (const auto& [name, item] : data_->items) {
    if (data_->kind == Kind::kMap && !data_->knows(name)) unread.push_back(name);
  }
  const std::string misspelt = misspelling_of(key, unread);
  if (misspelt.empty()) fail_at(*missing.data_, "is missing; " + way_out);
  throw ConfigError(c10::str("[Config] ", data_->get(misspelt)->origin, ": found key '", misspelt, "', but ",
                             missing.path(), " is missing; did you mean '", key, "'?"));
}

void ConfigNode::fail(const std::string& key, const std::string& message) const {
  if (key.empty()) fail_at(*data_, message);
  fail_at(*child(key).data_, message);
}

void ConfigNode::fail_value(const std::string& key, const std::string& expected) const {
  const ConfigNode node = key.empty() ? *this : child(key);
  fail_at(*node.data_, c10::str("is ", describe(*node.data_), ", expected ", expected));
}

namespace {

std::string lowered(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// YAML's numbers may have a plus.
template <class Number>
std::optional<Number> number_of(const std::string& text) {
  return parse_number<Number>(std::string_view(text).substr(text.size() > 1 && text[0] == '+' ? 1 : 0));
}

template <class T>
constexpr const char* kNameOf = std::is_same_v<T, bool>      ? "true or false"
                                : std::is_same_v<T, int64_t> ? "an integer"
                                : std::is_same_v<T, double>  ? "a number"
                                                             : "text";

// Nothing if the text is of another type.
template <class T>
std::optional<T> parse(const Data& data) {
  if constexpr (std::is_same_v<T, std::string>) return data.text;
  if (data.quoted) return std::nullopt;
  std::string word = lowered(data.text);
  if constexpr (std::is_same_v<T, bool>) {  // the words of YAML 1.1, which mmengine's users write
    if (word == "true" || word == "on" || word == "yes") return true;
    if (word == "false" || word == "off" || word == "no") return false;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return number_of<int64_t>(data.text);
  } else if constexpr (std::is_same_v<T, double>) {
    if (word == ".inf" || word == "-.inf") word.erase(word.find('.'), 1);
    const std::optional<double> value = number_of<double>(word);
    if (value && !std::isnan(*value)) return value;
  }
  return std::nullopt;
}

template <class T>
T parse_one(const Data& data) {
  const std::optional<T> value = data.kind == Kind::kValue ? parse<T>(data) : std::nullopt;
  if (!value) fail_at(data, c10::str("is ", describe(data), ", expected ", kNameOf<T>));
  return *value;
}

template <class T>
std::vector<T> parse_list(const Data& data, bool or_one) {
  if (or_one && data.kind == Kind::kValue) return {parse_one<T>(data)};
  if (data.kind != Kind::kList) {
    fail_at(data, c10::str("is ", describe(data), ", expected a list, each item ", kNameOf<T>));
  }
  std::vector<T> values;
  for (const auto& item : data.items) values.push_back(parse_one<T>(*item.second));
  return values;
}

OptionValue parsed(const Data& data, OptionField::Kind kind, bool or_one) {
  switch (kind) {
    case OptionField::Kind::kBool: return parse_one<bool>(data);
    case OptionField::Kind::kInteger: return parse_one<int64_t>(data);
    case OptionField::Kind::kNumber: return parse_one<double>(data);
    case OptionField::Kind::kText: return parse_one<std::string>(data);
    case OptionField::Kind::kIntegers: return parse_list<int64_t>(data, or_one);
    case OptionField::Kind::kNumbers: return parse_list<double>(data, or_one);
    case OptionField::Kind::kTexts: return parse_list<std::string>(data, or_one);
    case OptionField::Kind::kOther: return {};
  }
  return {};
}

bool is_of_texts(OptionField::Kind kind) {
  return kind == OptionField::Kind::kText || kind == OptionField::Kind::kTexts || kind == OptionField::Kind::kOther;
}

// A number that an option asks for is no secret, and a rerun of what is written shall have it without the environment.
void write_by_value(Data& data) {
  data.written.clear();
  for (const auto& item : data.items) item.second->written.clear();
}

std::string expected_number(OptionField::Kind kind, const Range& range) {
  OptionField field;
  field.kind = kind;
  field.range = range;
  return expected_of(field);
}

using Units = std::map<std::string, double>;

// "1h30m", "1.5 h" or "2d 6h"; nothing if the text is something else.
std::optional<double> sum_of_units(const std::string& text, const Units& units) {
  double sum = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789.", at), text.size());
    const std::size_t unit = std::min(text.find_first_not_of(' ', digits), text.size());
    const std::size_t end = std::min(text.find_first_of("0123456789. ", unit), text.size());
    const std::optional<double> number = parse_number<double>(text.substr(at, digits - at));
    const auto factor = units.find(lowered(text.substr(unit, end - unit)));
    if (!number || factor == units.end()) return std::nullopt;
    sum += *number * factor->second;
    at = std::min(text.find_first_not_of(' ', end), text.size());
  }
  return sum;
}

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

OptionValue ConfigNode::value(const std::string& key, OptionField::Kind kind, bool or_one) const {
  const ConfigNode node = child(key);
  Data& data = *node.data_;
  if (data.is_unset()) return {};
  OptionValue found = parsed(data, kind, or_one);
  if (!is_of_texts(kind)) write_by_value(data);
  return found;
}

void ConfigNode::note_default(const std::string& key, const OptionValue& value) const {
  child(key).data_->fallback = value;
}

int64_t ConfigNode::read_int(const std::string& key, int64_t fallback, int64_t min, int64_t max) const {
  const int64_t value = read<int64_t>(key, fallback);
  if (value >= min && value <= max) return value;
  Range range = at_least(static_cast<double>(min));
  if (max != std::numeric_limits<int64_t>::max()) range.high = static_cast<double>(max);
  fail_value(key, expected_number(OptionField::Kind::kInteger, range));
}

double ConfigNode::read_number(const std::string& key, double fallback, const Range& range) const {
  const double value = read<double>(key, fallback);
  if (range.holds(value)) return value;
  fail_value(key, expected_number(OptionField::Kind::kNumber, range));
}

std::string ConfigNode::read_choice(const std::string& key, const std::string& fallback,
                                    const std::vector<std::string>& choices) const {
  const std::string value = read<std::string>(key, fallback);
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  fail_value(key, join(choices) + did_you_mean(value, choices));
}

int64_t ConfigNode::read_bytes(const std::string& key, int64_t fallback) const {
  static const Units kUnits = {{"b", 1},         {"kb", 1e3},         {"mb", 1e6},
                               {"gb", 1e9},      {"tb", 1e12},        {"kib", 1024},
                               {"mib", 1048576}, {"gib", 1073741824}, {"tib", 1099511627776}};
  const std::optional<std::string> text = find<std::string>(key);
  if (!text) return read<int64_t>(key, fallback);
  std::optional<double> bytes = number_of<double>(*text);
  if (!bytes) bytes = sum_of_units(*text, kUnits);
  if (!bytes || !(*bytes >= 0 && *bytes < 9e18)) fail_value(key, "bytes such as 1000000, 512 MiB or 2 GiB");
  write_by_value(*child(key).data_);
  return static_cast<int64_t>(*bytes);
}

double ConfigNode::read_seconds(const std::string& key) const {
  static const Units kUnits = {{"d", 86400}, {"h", 3600}, {"m", 60}, {"min", 60}, {"s", 1}};
  const std::optional<std::string> text = find<std::string>(key);
  if (!text) return 0;
  std::optional<double> seconds = parse_number<double>(*text);
  if (!seconds) seconds = text->find(':') != std::string::npos ? parse_clock(*text) : sum_of_units(*text, kUnits);
  constexpr double kCentury = 3.2e9;
  if (seconds && *seconds > 0 && *seconds < kCentury) return *seconds;
  fail_value(key, "a time above 0: seconds, 2h, 1h30m, or days:hours:minutes:seconds");
}

bool yes_or_no(const Data& data) { return parse_one<bool>(data); }

}  // namespace duet
