#include "cli/config/config_options.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/config_data.h"

namespace duet {

namespace {

using FieldKind = OptionField::Kind;
constexpr double kMostOfInt = std::numeric_limits<int>::max();

// Counts are multiplied with one another: what has no end of its own ends here.
OptionField bounded(OptionField field) {
  Range& range = field.range;
  if (field.is_integer() && std::isfinite(range.low) && std::isinf(range.high)) range.high = kMostOfInt;
  return field;
}

std::string number_text(double value) { return text_of(OptionValue(value)); }

template <class Item>
void check_item(const ConfigNode& place, const OptionField& field, const Item& item) {
  if constexpr (std::is_same_v<Item, std::string>) {
    if (field.choices.empty() || std::ranges::find(field.choices, item) != field.choices.end()) return;
    place.fail_value("", expected_of(field) + did_you_mean(item, field.choices));
  } else if (!field.range.holds(static_cast<double>(item))) {
    place.fail_value("", expected_of(field));
  }
}

// Each number and word by itself, at its place; what several must be together is checked with the whole.
void check_given(const ConfigNode& node, const std::string& key, const OptionField& field, const OptionValue& given) {
  const auto* numbers = std::get_if<std::vector<double>>(&given);
  if (numbers != nullptr && field.count > 0 && numbers->size() != field.count)
    node.fail(key, c10::str("has ", numbers->size(), " numbers, expected ", field.count));
  const std::vector<ConfigNode> places = node.one_or_list(key);
  const auto check = [&](const auto& held) {
    using Held = std::decay_t<decltype(held)>;
    if constexpr (std::is_same_v<Held, std::string> || std::is_arithmetic_v<Held>) {
      if (!std::is_same_v<Held, bool>) check_item(places.front(), field, held);
    } else if constexpr (!std::is_same_v<Held, std::monostate>) {
      for (std::size_t i = 0; i < held.size(); ++i) check_item(places[i], field, held[i]);
    }
  };
  std::visit(check, given);
}

// Which of the two names the config uses.
std::string key_in(const ConfigNode& node, const OptionField& field) {
  if (field.other_key.empty() || !node.child(field.other_key).is_set()) return field.key;
  if (node.child(field.key).is_set()) {
    node.fail(field.other_key, "is set beside " + field.key + ", which is the same; remove one");
  }
  return field.other_key;
}

// As YAML, so that it can be copied.
std::string default_text(const OptionField& field, const void* options) {
  if (field.by_hand || field.required || options == nullptr) return field.fallback;
  const OptionValue value = field.get(options);
  return value.index() == 0 || value == OptionValue(std::string()) ? "" : yaml_text(value);
}

void read_field(const ConfigNode& beside, const OptionField& field, void* options) {
  if (field.by_hand || field.kind == FieldKind::kOther) return;
  const ConfigNode section = field.section.empty() ? beside : beside.child(field.section);
  const ConfigNode& node = section.is_set() ? section : beside;
  const std::string key = key_in(node, field);
  if (field.type == "bytes") {
    const OptionValue bytes = node.read_bytes(key, std::get<int64_t>(field.get(options)));
    if (node.child(key).is_set()) check_given(node, key, field, bytes);
    return field.set(options, bytes);
  }
  const OptionValue given = node.value(key, field.kind, field.or_one);
  if (given.index() != 0) {
    check_given(node, key, bounded(field), given);
    return field.set(options, given);
  }
  if (field.required) node.fail_missing(key, "add it");
  const OptionValue fallback = field.get(options);
  if (fallback.index() != 0 && fallback != OptionValue(std::string())) node.note_default(key, fallback);
}

std::string type_text(const OptionField& field) {
  if (!field.type.empty()) return field.type;
  if (!field.choices.empty() && field.kind == FieldKind::kText) return join(words_of(field));
  switch (field.kind) {
    case FieldKind::kBool: return "true/false";
    case FieldKind::kInteger: return "integer";
    case FieldKind::kNumber: return "number";
    case FieldKind::kText: return "text";
    case FieldKind::kIntegers: return "list of integers";
    case FieldKind::kNumbers: return "list of numbers";
    case FieldKind::kTexts: return field.choices.empty() ? "list of text" : "list of " + join(field.choices);
    case FieldKind::kOther: return "map";
  }
  return "";
}

std::string range_text(const OptionField& field) {
  const Range& range = field.range;
  if (field.kind == FieldKind::kOther || field.by_hand) return "";
  if (!std::isfinite(range.low)) return std::isfinite(range.high) ? "at most " + number_text(range.high) : "";
  const bool bounded = std::isfinite(range.high) && range.high < kMostOfInt;
  if (bounded && (range.above_low || range.below_high)) {
    return c10::str("in ", range.above_low ? "(" : "[", number_text(range.low), ", ", number_text(range.high),
                    range.below_high ? ")" : "]");
  }
  if (bounded) return number_text(range.low) + " to " + number_text(range.high);
  return (range.above_low ? "above " : "at least ") + number_text(range.low);
}

}  // namespace

void read_fields(const ConfigNode& node, const OptionFields& fields, void* options) {
  for (const OptionField& field : fields) read_field(node, field, options);
}

std::vector<ConfigKey> keys_of(const OptionFields& fields, const void* options, const std::string& section) {
  std::vector<ConfigKey> keys;
  for (const OptionField& field : fields) {
    const std::string also = field.other_key.empty() ? "" : "; also called " + field.other_key;
    keys.push_back({join_path(section, field.key), type_text(field), range_text(field), default_text(field, options),
                    field.meaning + also, field.required});
  }
  return keys;
}

}  // namespace duet
