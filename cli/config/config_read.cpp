#include <cctype>
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

std::string yaml_of(const OptionValue& value) {
  if (const auto* word = std::get_if<std::string>(&value)) return yaml_scalar(*word, false);
  if (const auto* number = std::get_if<double>(&value); number != nullptr && std::isinf(*number)) {
    return *number < 0 ? "-.inf" : ".inf";
  }
  const auto list = [](const auto& items) {
    std::string text;
    for (const auto& item : items) text += (text.empty() ? "" : ", ") + yaml_of(item);
    return "[" + text + "]";
  };
  if (const auto* words = std::get_if<std::vector<std::string>>(&value)) return list(*words);
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) return list(*numbers);
  return text_of(value);
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
  child(key).data_->fallback = yaml_of(value);
}

std::string bounds_text(const Range& range, bool integers) {
  const auto number = [](double value) { return text_of(OptionValue(value)); };
  std::string text = (range.above_low ? "above " : "of at least ") + number(range.low);
  if (std::isfinite(range.high)) {
    return text + " and at most " + (integers ? std::to_string(static_cast<int64_t>(range.high)) : number(range.high));
  }
  return range.infinite ? text : text + " and below infinity";
}

int64_t ConfigNode::read_int(const std::string& key, int64_t fallback, int64_t min, int64_t max) const {
  const int64_t value = read<int64_t>(key, fallback);
  if (value >= min && value <= max) return value;
  const bool open = max == std::numeric_limits<int64_t>::max();
  fail_value(key, c10::str("an integer of at least ", min, open ? "" : c10::str(" and at most ", max)));
}

double ConfigNode::read_number(const std::string& key, double fallback, double min, double max) const {
  const double value = read<double>(key, fallback);
  if (value >= min && value <= max) return value;
  using Limits = std::numeric_limits<double>;
  Range range{.low = min, .high = max, .infinite = max == Limits::infinity()};
  if (min == Limits::min()) range = {.low = 0, .high = max, .above_low = true, .infinite = range.infinite};
  if (max == Limits::max()) range.high = Limits::infinity();
  fail_value(key, "a number " + bounds_text(range, false));
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
    if (!value || unit != name || *value < 0 || *value * factor >= 9e18) continue;
    write_by_value(*child(key).data_);
    return static_cast<int64_t>(*value * factor);
  }
  fail_value(key, "bytes such as 1000000, 512 MiB or 2 GiB");
}

bool yes_or_no(const Data& data) { return parse_one<bool>(data); }

}  // namespace duet
