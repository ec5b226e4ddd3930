#include "base/options.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

bool Range::holds(double value) const {
  if (std::isinf(value)) return infinite && value > 0;
  return (above_low ? value > low : value >= low) && (below_high ? value < high : value <= high);
}

namespace {

std::string number_text(double value) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

template <class Item>
std::string item_text(const Item& item) {
  if constexpr (std::is_same_v<Item, double>)
    return number_text(item);
  else if constexpr (std::is_same_v<Item, int64_t>)
    return std::to_string(item);
  else
    return item;
}

// `place`: the field, or an element of it.
template <class Item>
void check_item(const std::string& struct_name, const OptionField& field, const std::string& place, const Item& item) {
  if constexpr (std::is_same_v<Item, std::string>) {
    const auto& choices = field.choices;
    if (choices.empty() || std::find(choices.begin(), choices.end(), item) != choices.end()) return;
    throw ConfigError(c10::str("[", struct_name, "] ", field.name, " is '", item, "', expected ", expected_of(field),
                               did_you_mean(item, choices)));
  } else {
    if (field.range.holds(static_cast<double>(item))) return;
    throw ConfigError(c10::str("[", struct_name, "] ", place, " is ", item, ", expected ", expected_of(field)));
  }
}

}  // namespace

std::string text_of(const OptionValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          return "none";
        else if constexpr (std::is_same_v<T, bool>)
          return held ? "true" : "false";
        else if constexpr (std::is_same_v<T, std::string> || std::is_arithmetic_v<T>)
          return item_text(held);
        else {
          std::string text;
          for (const auto& item : held) text += (text.empty() ? "" : ", ") + item_text(item);
          return "[" + text + "]";
        }
      },
      value);
}

std::vector<std::string> words_of(const OptionField& field) {
  std::vector<std::string> words = field.choices;
  std::erase(words, "");
  return words;
}

std::string expected_of(const OptionField& field) {
  if (!field.expected.empty()) return field.expected;
  if (!field.choices.empty()) return join(words_of(field));
  if (field.kind == OptionField::Kind::kText) return "a text";
  if (field.kind == OptionField::Kind::kTexts) return "a list of texts";
  const Range& range = field.range;
  std::string text = field.is_integer() ? "an integer" : "a number";
  if (std::isfinite(range.low) && std::isfinite(range.high)) {
    if (field.is_integer()) return c10::str(text, " from ", number_text(range.low), " to ", number_text(range.high));
    return c10::str(text, " in ", range.above_low ? "(" : "[", range.low, ", ", range.high,
                    range.below_high ? ")" : "]");
  }
  if (std::isfinite(range.low)) text += c10::str(range.above_low ? " > " : " >= ", range.low);
  return text + (range.infinite ? " or inf" : "");
}

void check_option(const std::string& struct_name, const OptionField& field, const OptionValue& value) {
  const auto check = [&](const auto& held) {
    using T = std::decay_t<decltype(held)>;
    if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double> || std::is_same_v<T, std::string>) {
      check_item(struct_name, field, field.name, held);
    } else if constexpr (!std::is_same_v<T, bool> && !std::is_same_v<T, std::monostate>) {
      for (std::size_t i = 0; i < held.size(); ++i)
        check_item(struct_name, field, c10::str(field.name, "[", i, "]"), held[i]);
    }
  };
  std::visit(check, value);
}

const OptionField* OptionFields::find(const std::string& name) const {
  const auto found = std::find_if(begin(), end(), [&](const OptionField& field) { return field.name == name; });
  return found == end() ? nullptr : &*found;
}

void OptionFields::check(const void* options) const {
  for (const OptionField& field : fields_) {
    if (field.is_member()) check_option(name_, field, field.get(options));
  }
  for (const auto& rule : rules_) rule(options);
}

std::string OptionFields::lines(const void* options) const {
  std::string lines;
  for (const OptionField& field : fields_) {
    if (field.is_member()) lines += field.name + ": " + text_of(field.get(options)) + "\n";
  }
  return lines;
}

std::size_t detail::place_of(const std::string& word, const std::vector<std::string>& words) {
  return static_cast<std::size_t>(std::find(words.begin(), words.end(), word) - words.begin());
}

void* AnyOptions::mutable_data() {
  if (values_.use_count() > 1) values_ = copy_(values_.get());
  return values_.get();
}

void AnyOptions::set(const std::string& name, const OptionValue& value) {
  const OptionField* field = fields_->find(name);
  if (field == nullptr) {
    std::vector<std::string> names;
    for (const OptionField& known : *fields_) names.push_back(known.name);
    throw ConfigError(c10::str("[", fields_->name(), "] has no option '", name, "'; ", known_and_nearest(name, names)));
  }
  field->set(mutable_data(), value);
}

}  // namespace duet
