#include <cctype>
#include <charconv>
#include <cmath>
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

// One reader per type: the value, or nothing if the text is of another type; and what it is called in messages and
// help.
template <class T>
struct Reader;

template <>
struct Reader<bool> {
  static constexpr const char* kName = "true or false";
  static std::optional<bool> parse(const Data& data) {
    if (data.quoted) return std::nullopt;
    const std::string word = lowered(data.text);  // the words of YAML 1.1, which mmengine's users write
    if (word == "true" || word == "on" || word == "yes") return true;
    if (word == "false" || word == "off" || word == "no") return false;
    return std::nullopt;
  }
  static std::string text(bool value) { return value ? "true" : "false"; }
};

template <>
struct Reader<int64_t> {
  static constexpr const char* kName = "an integer";
  static std::optional<int64_t> parse(const Data& data) {
    return data.quoted ? std::nullopt : number_of<int64_t>(data.text);
  }
  static std::string text(int64_t value) { return std::to_string(value); }
};

template <>
struct Reader<double> {
  static constexpr const char* kName = "a number";
  static std::optional<double> parse(const Data& data) {
    if (data.quoted) return std::nullopt;
    std::string word = lowered(data.text);
    if (word == ".inf" || word == "-.inf") word.erase(word.find('.'), 1);
    const std::optional<double> value = number_of<double>(word);
    return value && std::isnan(*value) ? std::nullopt : value;
  }
  static std::string text(double value) {
    if (std::isinf(value)) return value < 0 ? "-.inf" : ".inf";
    char buffer[32];
    return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
  }
};

template <>
struct Reader<std::string> {
  static constexpr const char* kName = "text";
  static std::optional<std::string> parse(const Data& data) { return data.text; }
  static std::string text(const std::string& value) { return yaml_scalar(value, false); }
};

template <class T>
constexpr bool kIsList = requires { typename T::value_type; } && !std::is_same_v<T, std::string>;

template <class T>
T parse_value(const Data& data) {
  if constexpr (kIsList<T>) {
    if (data.kind != Kind::kList) {
      fail_at(data,
              c10::str("is ", describe(data), ", expected a list, each item ", Reader<typename T::value_type>::kName));
    }
    T values;
    for (const auto& item : data.items) values.push_back(parse_value<typename T::value_type>(*item.second));
    return values;
  } else {
    const std::optional<T> value = data.kind == Kind::kValue ? Reader<T>::parse(data) : std::nullopt;
    if (!value) fail_at(data, c10::str("is ", describe(data), ", expected ", Reader<T>::kName));
    return *value;
  }
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (kIsList<T>) {
    std::string text;
    for (const auto& item : value) text += (text.empty() ? "" : ", ") + Reader<typename T::value_type>::text(item);
    return "[" + text + "]";
  } else {
    return Reader<T>::text(value);
  }
}

// "above 0 and at most 1": what a message expects. Infinity never lies in a range that ends at the largest number.
std::string bounds_text(double min, double max) {
  const bool above_zero = min == std::numeric_limits<double>::min();
  const std::string low = above_zero ? "above 0" : "of at least " + text_of(min);
  if (std::isinf(max)) return low;
  return low + (max == std::numeric_limits<double>::max() ? " and below infinity" : " and at most " + text_of(max));
}

}  // namespace

template <class T>
std::optional<T> ConfigNode::find(const std::string& key) const {
  const ConfigNode node = child(key);
  if (node.data_->is_unset()) return std::nullopt;
  return parse_value<T>(*node.data_);
}

template <class T>
T ConfigNode::read(const std::string& key, const T& fallback) const {
  const std::optional<T> value = find<T>(key);
  if (value) return *value;
  child(key).data_->fallback = text_of(fallback);
  return fallback;
}

template <class T>
T ConfigNode::need(const std::string& key) const {
  std::optional<T> value = find<T>(key);
  if (!value) fail_missing(key, "add it");
  return *value;
}

template std::optional<bool> ConfigNode::find(const std::string&) const;
template bool ConfigNode::read(const std::string&, const bool&) const;
template bool ConfigNode::need(const std::string&) const;
template std::optional<int64_t> ConfigNode::find(const std::string&) const;
template int64_t ConfigNode::read(const std::string&, const int64_t&) const;
template int64_t ConfigNode::need(const std::string&) const;
template std::optional<double> ConfigNode::find(const std::string&) const;
template double ConfigNode::read(const std::string&, const double&) const;
template double ConfigNode::need(const std::string&) const;
template std::optional<std::string> ConfigNode::find(const std::string&) const;
template std::string ConfigNode::read(const std::string&, const std::string&) const;
template std::string ConfigNode::need(const std::string&) const;
template std::optional<std::vector<int64_t>> ConfigNode::find(const std::string&) const;
template std::vector<int64_t> ConfigNode::read(const std::string&, const std::vector<int64_t>&) const;
template std::vector<int64_t> ConfigNode::need(const std::string&) const;
template std::optional<std::vector<double>> ConfigNode::find(const std::string&) const;
template std::vector<double> ConfigNode::read(const std::string&, const std::vector<double>&) const;
template std::vector<double> ConfigNode::need(const std::string&) const;
template std::optional<std::vector<std::string>> ConfigNode::find(const std::string&) const;
template std::vector<std::string> ConfigNode::read(const std::string&, const std::vector<std::string>&) const;
template std::vector<std::string> ConfigNode::need(const std::string&) const;

int64_t ConfigNode::read_int(const std::string& key, int64_t fallback, int64_t min, int64_t max) const {
  const int64_t value = read<int64_t>(key, fallback);
  if ((value >= min && value <= max)) return value;
  const bool open = max == std::numeric_limits<int64_t>::max();
  fail_value(key, c10::str("an integer of at least ", min, open ? "" : c10::str(" and at most ", max)));
}

double ConfigNode::read_number(const std::string& key, double fallback, double min, double max) const {
  const double value = read<double>(key, fallback);
  if ((value >= min && value <= max)) return value;
  fail_value(key, "a number " + bounds_text(min, max));
}

std::string ConfigNode::read_choice(const std::string& key, const std::string& fallback,
                                    const std::vector<std::string>& choices) const {
  const std::string value = read<std::string>(key, fallback);
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  fail_value(key, c10::str("one of ", join(choices), did_you_mean(value, choices)));
}

int64_t ConfigNode::read_bytes(const std::string& key, int64_t fallback) const {
  const std::optional<std::string> text = find<std::string>(key);
  const int64_t by_default = text ? fallback : read<int64_t>(key, fallback);
  if (!text) return by_default;
  static const std::vector<std::pair<std::string, double>> kUnits = {
      {"", 1},      {"b", 1},        {"kb", 1e3},        {"mb", 1e6},           {"gb", 1e9},
      {"tb", 1e12}, {"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"tib", 1099511627776.0}};
  const std::size_t digits = std::min(text->find_first_not_of("0123456789.+eE-"), text->size());
  std::string unit = lowered(text->substr(digits));
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  std::string number = text->substr(0, digits);
  while (!number.empty() && number.back() == ' ') number.pop_back();
  const std::optional<double> value = number_of<double>(number);
  for (const auto& [name, factor] : kUnits) {
    if (value && unit == name && *value >= 0 && *value * factor < 9e18) return static_cast<int64_t>(*value * factor);
  }
  fail_value(key, "bytes such as 1000000, 512 MiB or 2 GiB");
}

bool yes_or_no(const Data& data) { return parse_value<bool>(data); }

}  // namespace duet
