#include "data/detail/csv_values.h"
#include <algorithm>
#include <cctype>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/pattern.h"
#include "base/error.h"

namespace duet {

std::optional<double> finite_number(const std::string& text) {
  const std::optional<double> number = parse_number<double>(text.starts_with('+') ? text.substr(1) : text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

void fail_value(const CsvTable& table, int64_t row, const std::string& column, const std::string& what) {
  throw DataError(c10::str("[Csv] ", table.path, ":", table.lines[static_cast<std::size_t>(row)], ": column '",
                           one_line(column), "': ", what));
}

namespace {

// Signs alone, or a word for nothing among them: "NA", "#N/A", "?"; "\N" of MySQL. In small letters.
bool is_missing(const std::string& text) {
  static const std::set<std::string> kWords = {"", "na", "nan", "null", "none", "nil", "missing", "unknown"};
  std::string letters;
  for (const unsigned char c : text) {
    if (std::isdigit(c) != 0 || c >= 0x80) return text == "\u2014";
    if (std::isalpha(c) != 0) letters += static_cast<char>(c);
  }
  return text == "\\n" || kWords.contains(letters);
}

// A day, a month with its year, or a time of the day.
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
bool is_spelled_number(const std::string& text) {
  static const std::string signs = "([-+(~. ]|\u2212|\u2013|\u2014)*",
                           currency =
                               "([a-z]{0,3}(\\$|\u20AC|\u00A3|\u00A5|\u20B9|\u00A2)|usd|eur|gbp|chf|inr|rs|jpy|cny)?",
                           lead = signs + currency + signs,
                           number = "[0-9](([.,'_ ]|\u2019|\u00A0|\u2009|\u202F)?[0-9])*( |\u00A0|\u2009|\u202F)*";
  static const Pattern kOne(lead + number + "[^ 0-9]* *"), kSeveral(lead + "(" + number + "[a-z]+ *)+");
  return kOne.matches(text) || kSeveral.matches(text);
}

// The letters behind the first digit: "kg" of "29 kg".
std::string unit_of(const std::string& text) {
  std::string unit;
  for (std::size_t at = std::min(text.find_first_of("0123456789"), text.size()); at < text.size(); ++at) {
    if (std::isalpha(static_cast<unsigned char>(text[at])) != 0) unit += text[at];
  }
  return unit;
}

// How many rows, and how many distinct values, speak for something.
struct Votes {
  int64_t rows = 0, values = 0;
  void add(int64_t more_rows, int64_t more_values = 1) {
    rows += more_rows;
    values += more_values;
  }
};

}  // namespace

bool holds_numbers(const CsvTable& table, const std::vector<int64_t>& rows, const std::string& column) {
  const std::size_t place = table.column(column);
  std::unordered_map<std::string_view, std::pair<int64_t, int64_t>> seen;  // how many rows, and the first one
  for (const int64_t row : rows) {
    const std::string& text = table.rows[static_cast<std::size_t>(row)][place];
    if (!text.empty()) ++seen.try_emplace(text, 0, row).first->second.first;
  }
  Votes numbers, measures, texts;
  std::set<std::string> units;
  std::optional<int64_t> odd_row;
  for (const auto& [given, found] : seen) {
    std::string text(given);
    if (finite_number(text)) {
      numbers.add(found.first);
      continue;
    }
    odd_row = std::min(odd_row.value_or(found.second), found.second);
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    if (is_missing(text)) continue;
    if (parse_number<double>(text) || is_date(text)) {
      numbers.add(found.first);
    } else if (!is_spelled_number(text)) {
      texts.add(found.first);
    } else {
      const std::string unit = unit_of(text);
      (unit.empty() ? numbers : measures).add(found.first);
      if (!unit.empty()) units.insert(unit);
    }
  }
  if (!odd_row) return true;
  // The kilograms of many differ; of flat numbers as 12A and 12B the letters differ as much.
  (std::ssize(units) < measures.values ? numbers : texts).add(measures.rows, measures.values);
  if (numbers.rows == 0 || (texts.rows > numbers.rows && texts.values > numbers.values)) return false;
  fail_value(
      table, *odd_row, column,
      "found '" + one_line(table.rows[static_cast<std::size_t>(*odd_row)][place]) +
          "', expected a number as 1234.5, no unit, date or word; write or fill it in, leave the row out, or set " +
          "categorical: [" + one_line(column) + "] (of a target: task: classification) if these are no numbers");
}

int64_t category_in(const std::vector<std::string>& categories, const CsvTable& table, int64_t row,
                    std::size_t column) {
  const std::string& text = table.rows[static_cast<std::size_t>(row)][column];
  if (text.empty()) {
    fail_value(table, row, table.columns[column],
               "found no value, expected one of the training rows' values; fill it in or leave the row out");
  }
  const auto found = std::lower_bound(categories.begin(), categories.end(), text, ByNumberThenText());
  if (found != categories.end() && *found == text) return found - categories.begin();
  fail_value(table, row, table.columns[column],
             "found '" + one_line(text) + "', expected one of the training rows' values; " +
                 known_and_nearest(text, categories) +
                 "; correct it, leave the row out (of rows to predict the target's column), or set handle_unknown: "
                 "ignore (of a feature)");
}

double number_in(const CsvTable& table, int64_t row, std::size_t column) {
  const std::string& text = table.rows[static_cast<std::size_t>(row)][column];
  if (const std::optional<double> number = finite_number(text)) return *number;
  fail_value(table, row, table.columns[column],
             text.empty() ? "found no value, expected a number; fill it in or leave the row out"
                          : "found '" + one_line(text) + "', expected a number as in the other rows");
}

float float_in(double number, const CsvTable& table, int64_t row, std::size_t column) {
  const auto narrow = static_cast<float>(number);
  if (std::isfinite(narrow)) return narrow;
  fail_value(
      table, row, table.columns[column],
      c10::str("found ", number, ", expected a number of at most 3.4e38, which float32 holds; scale the column"));
}

int64_t class_in(int64_t count, const CsvTable& table, int64_t row, std::size_t column) {
  const double number = number_in(table, row, column);
  if (number == std::floor(number) && number >= 0 && number < static_cast<double>(count)) {
    return static_cast<int64_t>(number);
  }
  fail_value(table, row, table.columns[column],
             c10::str("found ", number, ", expected one of the training rows' classes, 0 to ", count - 1));
}

}  // namespace duet
