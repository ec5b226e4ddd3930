#include "data/detail/field_kind.h"
#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include "base/detail/pattern.h"
#include "base/detail/text.h"
#include "data/detail/csv_values.h"

namespace duet {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// In small letters, and signs that have a like in ASCII as that: minus and dashes, spaces, an apostrophe; $ for every
// currency.
std::string in_plain_letters(std::string text) {
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
  for (const auto& [sign, like] : kLikes) {
    for (std::size_t at = 0; (at = text.find(sign, at)) != std::string::npos;) text.replace(at, sign.size(), 1, like);
  }
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Signs alone, or a word for nothing among them.
bool is_missing(const std::string& text) {
  static constexpr std::array<std::string_view, 8> kWords = {"",     "na",  "nan",     "null",
                                                             "none", "nil", "missing", "unknown"};
  if (text == "\\n") return true;  // as MySQL writes it, \N
  if (!std::ranges::all_of(text, [](char c) { return is_ascii(c) && !is_digit(c); })) return false;
  std::string letters;
  std::ranges::copy_if(text, std::back_inserter(letters), is_letter);
  return std::ranges::find(kWords, letters) != kWords.end();
}

bool is_date(const std::string& text) {
  static const std::string year = "(18|19|20)[0-9]{2}", day = "[0-9]{1,2}", any = "(" + year + "|" + day + ")";
  static const Pattern kDay(any + "[-/.]" + day + "[-/.]" + any + "([ ,t].*)?"),
      kMonth(year + "[-/.]" + day + "|" + day + "[-/.]" + year),
      kTime("(.*[^0-9])?" + day + ":[0-9]{2}([^0-9].*)?|" + day + " ?[ap]m"),
      kName(
          "(?=.*[0-9])(.*[^a-z])?(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|"
          "oct(ober)?|nov(ember)?|dec(ember)?|mon(day)?|tue(s|sday)?|wed(nesday)?|thu(rs|rsday)?|fri(day)?|"
          "sat(urday)?|sun(day)?)([^a-z].*)?");
  return kDay.matches(text) || kMonth.matches(text) || kTime.matches(text) || kName.matches(text);
}

// "$1,234.5", "29 kg", "2h 50m": a number, with or without a word behind it, or several with a word behind each.
bool is_number_with_signs(const std::string& text) {
  static const std::string signs = "[-+(~. ]*",
                           lead = signs + "([a-z]{0,3}\\$|usd|eur|gbp|chf|inr|rs|jpy|cny)?" + signs,
                           number = "[0-9]([.,'_ ]?[0-9])* *";
  static const Pattern kOne(lead + number + "[^ 0-9]* *"), kSeveral(lead + "(" + number + "[a-z]+ *)+");
  return kOne.matches(text) || kSeveral.matches(text);
}

}  // namespace

Field read_field(const std::string& given) {
  if (finite_number(given)) return {FieldKind::kNumber};
  const std::string text = in_plain_letters(given);
  if (is_missing(text)) return {FieldKind::kMissing};
  if (parse_number<double>(text)) return {FieldKind::kSpelled};  // infinite
  const std::size_t digit = text.find_first_of("0123456789");
  if (digit == std::string::npos) return {FieldKind::kText};
  if (is_date(text)) return {FieldKind::kDate};
  if (!is_number_with_signs(text)) return {FieldKind::kText};
  std::string unit;
  std::copy_if(text.begin() + static_cast<std::ptrdiff_t>(digit), text.end(), std::back_inserter(unit),
               [](char c) { return is_letter(c) || !is_ascii(c); });
  return unit.empty() ? Field{FieldKind::kSpelled} : Field{FieldKind::kMeasure, unit};
}

}  // namespace duet
