#include "data/detail/csv_values.h"
#include <algorithm>
#include <cmath>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "data/detail/class_order.h"

namespace duet {

std::optional<double> finite_number(const std::string& text) {
  const std::optional<double> number = parse_number<double>(text.starts_with('+') ? text.substr(1) : text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

bool looks_like_number(const std::string& text) {
  const bool only = text.find_first_not_of("0123456789.,' %+-") == std::string::npos;
  const bool is_date = text.find('-', 1) != std::string::npos;
  return only && !is_date && text.find_first_of("0123456789") != std::string::npos;
}

void fail_value(const CsvTable& table, int64_t row, const std::string& column, const std::string& what) {
  throw DataError(c10::str("[Csv] ", table.path, ":", table.lines[static_cast<std::size_t>(row)], ": column '",
                           one_line(column), "': ", what));
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
                 "; correct it, leave the row out, or set handle_unknown: ignore (of a feature)");
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
