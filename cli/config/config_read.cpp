#include <cctype>
#include <cmath>
#include <map>
#include <sstream>
#include <type_traits>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

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
