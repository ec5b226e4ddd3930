#include <c10/util/StringUtil.h>
#include <duet/cli/config_data.h>
#include <duet/core/nearest.h>
#include <duet/core/error.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <type_traits>

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

std::string lowered(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

template <class Number>
std::optional<Number> parse_number(const std::string& text) {
  const char* begin = text.data() + (text.size() > 1 && text[0] == '+' ? 1 : 0);
  const char* end = text.data() + text.size();
  Number value{};
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

// One reader per type: the value, or nothing if the text is of another type; and what it is called in messages.
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
    return data.quoted ? std::nullopt : parse_number<int64_t>(data.text);
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
    const std::optional<double> value = parse_number<double>(word);
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

std::string describe(const Data& data) {
  switch (data.kind) {
    case Kind::kAbsent: return "missing";
    case Kind::kNull: return "null";
    case Kind::kValue: return "'" + data.text + "'";
    case Kind::kList: return c10::str("a list of ", data.items.size());
    case Kind::kMap: return "a map";
  }
  return {};
}

[[noreturn]] void fail_at(const Data& data, const std::string& message) {
  throw ConfigError(
      c10::str("[Config] ", data.origin, ": ", data.path.empty() ? "the config" : data.path, " ", message));
}

template <class T>
T parse_value(const Data& data) {
  if constexpr (requires { typename T::value_type; } && !std::is_same_v<T, std::string>) {
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
  if constexpr (requires { typename T::value_type; } && !std::is_same_v<T, std::string>) {
    std::string text;
    for (const auto& item : value) text += (text.empty() ? "" : ", ") + Reader<typename T::value_type>::text(item);
    return "[" + text + "]";
  } else {
    return Reader<T>::text(value);
  }
}

bool is_unset(const Data& data) { return data.kind == Kind::kAbsent || data.kind == Kind::kNull; }

}  // namespace

ConfigNode::ConfigNode() : data_(std::make_shared<Data>()) {}

Kind ConfigNode::kind() const { return data_->kind; }
const std::string& ConfigNode::origin() const { return data_->origin; }
const std::string& ConfigNode::path() const { return data_->path; }

bool ConfigNode::is_empty() const {
  if (data_->kind == Kind::kValue) return false;
  return std::all_of(data_->items.begin(), data_->items.end(),
                     [](const auto& item) { return item.second->kind == Kind::kAbsent; });
}

void ConfigNode::require_map() const {
  if (data_->kind == Kind::kValue || data_->kind == Kind::kList) {
    fail_at(*data_, c10::str("is ", describe(*data_), ", expected a map of 'key: value'"));
  }
}

ConfigNode ConfigNode::child(const std::string& key) const {
  require_map();
  auto& known = data_->known;
  if (std::find(known.begin(), known.end(), key) == known.end()) known.push_back(key);
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
  if (is_unset(*node.data_)) return nodes;
  if (node.kind() != Kind::kList) fail_at(*node.data_, c10::str("is ", describe(*node.data_), ", expected a list"));
  for (const auto& item : node.data_->items) nodes.push_back(ConfigNode(item.second));
  return nodes;
}

std::vector<ConfigNode> ConfigNode::one_or_list(const std::string& key) const {
  const ConfigNode node = child(key);
  if (node.kind() == Kind::kMap || node.kind() == Kind::kValue) return {node};
  return list(key);
}

template <class T>
std::optional<T> ConfigNode::find(const std::string& key) const {
  const ConfigNode node = child(key);
  if (is_unset(*node.data_)) return std::nullopt;
  return parse_value<T>(*node.data_);
}

template <class T>
T ConfigNode::read(const std::string& key, const T& fallback) const {
  if (std::optional<T> value = find<T>(key)) return *value;
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
  if (value >= min && value <= max) return value;
  const bool open = max == std::numeric_limits<int64_t>::max();
  fail(key,
       c10::str("is ", value, ", expected an integer of at least ", min, open ? "" : c10::str(" and at most ", max)));
}

double ConfigNode::read_number(const std::string& key, double fallback, double min, double max) const {
  const double value = read<double>(key, fallback);
  if (value >= min && value <= max) return value;
  fail(key, c10::str("is ", text_of(value), ", expected a number of at least ", text_of(min),
                     std::isinf(max) ? "" : c10::str(" and at most ", text_of(max))));
}

std::string ConfigNode::read_choice(const std::string& key, const std::string& fallback,
                                    const std::vector<std::string>& choices) const {
  const std::string value = read<std::string>(key, fallback);
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  fail(key, c10::str("is '", value, "', expected one of ", join(choices), "; did you mean '", nearest(value, choices),
                     "'?"));
}

int64_t ConfigNode::read_bytes(const std::string& key, int64_t fallback) const {
  const std::optional<std::string> text = find<std::string>(key);
  if (!text) return read<int64_t>(key, fallback);
  static const std::vector<std::pair<std::string, double>> kUnits = {
      {"", 1}, {"b", 1}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
      {"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"tib", 1099511627776.0}};
  const std::size_t digits = std::min(text->find_first_not_of("0123456789.+eE-"), text->size());
  std::string unit = lowered(text->substr(digits));
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  std::string number = text->substr(0, digits);
  while (!number.empty() && number.back() == ' ') number.pop_back();
  const std::optional<double> value = parse_number<double>(number);
  for (const auto& [name, factor] : kUnits) {
    if (value && unit == name && *value >= 0 && *value * factor < 9e18) return static_cast<int64_t>(*value * factor);
  }
  fail(key, c10::str("is '", *text, "', expected bytes such as 1000000, 512 MiB or 2 GiB"));
}

void ConfigNode::reject_unknown() const {
  if (data_->kind != Kind::kMap && data_->kind != Kind::kList) return;
  for (const auto& [key, item] : data_->items) {
    const bool known = std::find(data_->known.begin(), data_->known.end(), key) != data_->known.end();
    if (data_->kind == Kind::kMap && !known) {
      throw ConfigError(c10::str("[Config] ", item->origin, ": unknown key '", key, "' in ",
                                 data_->path.empty() ? "the config" : data_->path, "; ",
                                 known_and_nearest(key, data_->known)));
    }
    if (!item->check_later) ConfigNode(item).reject_unknown();
  }
}

void ConfigNode::check_later() const { data_->check_later = true; }

void ConfigNode::located(const std::function<void()>& check) const {
  try {
    check();
  } catch (const ConfigError& error) {
    if (std::string(error.what()).rfind("[Config]", 0) == 0) throw;  // it names a closer place
    throw ConfigError(c10::str("[Config] ", data_->origin, ": ", data_->path, ": ", error.what()));
  }
}

void ConfigNode::fail_missing(const std::string& key, const std::string& way_out) const {
  const ConfigNode missing = child(key);
  std::vector<std::string> unread;
  for (const auto& [name, item] : data_->items) {
    const bool known = std::find(data_->known.begin(), data_->known.end(), name) != data_->known.end();
    if (data_->kind == Kind::kMap && !known) unread.push_back(name);
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

}  // namespace duet
