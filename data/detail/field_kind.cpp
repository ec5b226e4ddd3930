#include "data/detail/field_kind.h"
#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>
#include "base/detail/text.h"
#include "data/detail/csv_values.h"

namespace duet {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

std::string lower_letters(std::string_view text) {
  std::string letters;
  for (const char c : text) {
    if (is_letter(c)) letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters;
}

// Signs that have a like in ASCII as that: minus and dashes, spaces, an apostrophe; $ for every currency.
std::string in_ascii(std::string text) {
  static constexpr std::array<std::pair<std::string_view, char>, 12> kLikes = {{{"\u2212", '-'},
                                                                                {"\u2013", '-'},
                                                                                {"\u2014", '-'},
                                                                                {"\u00A0", ' '},
                                                                                {"\u2009", ' '},
                                                                                {"\u202F", ' '},
                                                                                {"\u2019", '\''},
                                                                                {"\u20AC", '$'},
                                                                                {"\u00A3", '$'},
                                                                                {"\u00A5", '$'},
                                                                                {"\u20B9", '$'},
                                                                                {"\u00A2", '$'}}};
  if (std::ranges::all_of(text, is_ascii)) return text;
  for (const auto& [sign, like] : kLikes) {
    for (std::size_t at = 0; (at = text.find(sign, at)) != std::string::npos;) text.replace(at, sign.size(), 1, like);
  }
  return text;
}

bool is_missing(const std::string& text) {
  if (!std::ranges::all_of(text, [](char c) { return is_ascii(c) && !is_digit(c); })) return false;
  return text == "\\N" ||
         is_one_of(lower_letters(text), {"", "na", "nan", "null", "none", "nil", "missing", "unknown"});
}

// What may stand before a number: a sign, a currency.
bool may_lead(std::string_view text) {
  const std::string letters = lower_letters(text);
  const bool is_currency = text.find('$') != std::string_view::npos && letters.size() <= 3;
  return text.find_first_not_of("+-(~. $ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") ==
             std::string_view::npos &&
         (is_currency || is_one_of(letters, {"", "usd", "eur", "gbp", "chf", "inr", "rs", "jpy", "cny"}));
}

// "$1,234.5", "29 kg", "2h 50m": numbers, each with a word behind it but where there is one alone. Gives the words.
std::optional<std::string> units_in(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_of("0123456789"), text.size());
  if (begin == text.size() || !may_lead(text.substr(0, begin))) return std::nullopt;
  std::string units;
  const auto pass_spaces = [&text] { text.remove_prefix(std::min(text.find_first_not_of(' '), text.size())); };
  for (text.remove_prefix(begin); !text.empty(); pass_spaces()) {
    std::size_t end = 0;
    const auto parts_digits = [&](std::size_t at) {
      return std::string_view(".,'_ ").find(text[at]) != std::string_view::npos && at + 1 < text.size() &&
             is_digit(text[at + 1]);
    };
    while (end < text.size() && (is_digit(text[end]) || parts_digits(end))) ++end;
    if (end == 0) return std::nullopt;
    text.remove_prefix(end);
    pass_spaces();
    const std::string_view word = text.substr(0, text.find_first_of(" 0123456789"));
    text.remove_prefix(word.size());
    const bool goes_on = text.find_first_not_of(' ') != std::string_view::npos;
    const bool is_among_others = goes_on || !units.empty();
    if (is_among_others && (word.empty() || !std::ranges::all_of(word, is_letter))) return std::nullopt;
    units += word;
  }
  return units;
}

bool is_name_of_date(std::string_view word) {
  static constexpr std::array<std::string_view, 19> kNames = {
      "january",   "february",  "march",   "april",    "may",      "june",   "july",
      "august",    "september", "october", "november", "december", "monday", "tuesday",
      "wednesday", "thursday",  "friday",  "saturday", "sunday"};
  return word.size() >= 3 && std::ranges::any_of(kNames, [&](auto name) { return name.starts_with(word); });
}

// Digits as D (one or two), Y (a year) or N, names of months and days as M, other words as they are, / and . as -.
std::string shape_of(std::string_view text) {
  std::string shape;
  while (!text.empty()) {
    const bool digits = is_digit(text[0]), letters = is_letter(text[0]);
    const auto end =
        std::ranges::find_if_not(text, [&](char c) { return digits ? is_digit(c) : letters && is_letter(c); });
    const std::string_view run = text.substr(0, std::max<std::ptrdiff_t>(end - text.begin(), 1));
    text.remove_prefix(run.size());
    if (digits) {
      const bool is_year = run.size() == 4 && is_one_of(run.substr(0, 2), {"18", "19", "20"});
      shape += run.size() <= 2 ? 'D' : is_year ? 'Y' : 'N';
    } else if (letters) {
      const std::string word = lower_letters(run);
      shape += is_name_of_date(word) ? "M" : word;
    } else {
      shape += run == "/" || run == "." ? "-" : run;
    }
  }
  return shape;
}

bool is_date(const std::string& text) {
  const std::string shape = shape_of(text);
  for (const std::string day : {"Y-D-D", "D-D-Y", "D-D-D"}) {
    if (shape == day ||
        (shape.starts_with(day) && std::string_view(" ,t").find(shape[day.size()]) != std::string::npos))
      return true;
  }
  const std::size_t minutes = text.find(':') + 1;  // always of two digits, which a ratio as 16:9 need not have
  const bool is_time =
      shape.find("D:D") != std::string::npos && minutes + 1 < text.size() && is_digit(text[minutes + 1]);
  const bool has_name = shape.find('M') != std::string::npos && shape.find_first_of("DY") != std::string::npos;
  return is_time || has_name || is_one_of(shape, {"Y-D", "D-Y", "Dam", "D am", "Dpm", "D pm"});
}

}  // namespace

Field read_field(const std::string& given) {
  if (finite_number(given)) return {FieldKind::kNumber};
  const std::string text = in_ascii(given);
  if (is_missing(text)) return {FieldKind::kMissing};
  if (parse_number<double>(text)) return {FieldKind::kSpelled};  // infinite
  if (is_date(text)) return {FieldKind::kDate};
  const std::optional<std::string> units = units_in(text);
  if (!units) return {FieldKind::kText};
  const bool has_name = std::ranges::any_of(*units, [](char c) { return is_letter(c) || !is_ascii(c); });
  return has_name ? Field{FieldKind::kMeasure, *units} : Field{FieldKind::kSpelled};
}

}  // namespace duet
