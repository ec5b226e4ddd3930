#include "data/detail/csv_values.h"
#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "data/detail/class_order.h"
#include "data/detail/field_kind.h"

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

struct Votes {
  int64_t rows = 0, values = 0;
  void add(int64_t more) {
    rows += more;
    ++values;
  }
  Votes& operator+=(const Votes& other) {
    rows += other.rows;
    values += other.values;
    return *this;
  }
};

// Which fields of a column speak for numbers, and the first one that is none.
struct Census {
  Votes plain, others, measures, texts;  // others: numbers in another spelling, dates
  std::set<std::string> units;
  std::optional<int64_t> odd_row;
  Field odd;
};

Census count_fields(const CsvTable& table, const std::vector<int64_t>& rows, std::size_t place) {
  std::unordered_map<std::string_view, std::pair<int64_t, int64_t>> seen;  // how many rows, and the first one
  for (const int64_t row : rows) {
    const std::string& text = table.rows[static_cast<std::size_t>(row)][place];
    if (!text.empty()) ++seen.try_emplace(text, 0, row).first->second.first;
  }
  Census census;
  for (const auto& [text, found] : seen) {
    Field field = read_field(std::string(text));
    switch (field.kind) {
      case FieldKind::kNumber: census.plain.add(found.first); continue;
      case FieldKind::kMissing: break;
      case FieldKind::kSpelled:
      case FieldKind::kDate: census.others.add(found.first); break;
      case FieldKind::kMeasure:
        census.measures.add(found.first);
        census.units.insert(field.unit);
        break;
      case FieldKind::kText: census.texts.add(found.first); break;
    }
    if (census.odd_row && *census.odd_row < found.second) continue;
    census.odd_row = found.second;
    census.odd = std::move(field);
  }
  return census;
}

// What should stand there, and what to do.
std::string expected_number(FieldKind kind, int64_t plain_rows, const std::string& column) {
  const std::string number =
      plain_rows == 0 ? "a number"
                      : c10::str("a number as in ", plain_rows, plain_rows == 1 ? " other row" : " other rows");
  const std::string as_category =
      "set categorical: [" + one_line(column) + "] (of a target: task: classification) if these are no numbers";
  switch (kind) {
    case FieldKind::kMissing: return number + "; fill it in, leave the row out, or leave the column out by features";
    case FieldKind::kDate: return number + " and no date or time; write a year, minutes or the like, or " + as_category;
    case FieldKind::kText: return number + "; correct it, leave the row out, or " + as_category;
    default: return "a number as 1234.5, without units, %, commas or spaces; write it so, or " + as_category;
  }
}

}  // namespace

bool holds_numbers(const CsvTable& table, const std::vector<int64_t>& rows, const std::string& column) {
  const std::size_t place = table.column(column);
  const auto is_plain = [&](int64_t row) {
    const std::string& text = table.rows[static_cast<std::size_t>(row)][place];
    return text.empty() || finite_number(text);
  };
  if (std::ranges::all_of(rows, is_plain)) return true;
  Census census = count_fields(table, rows, place);
  Votes numbers = census.plain;
  numbers += census.others;
  // The kilograms of many differ; of flat numbers as 12A and 12B the letters differ as much.
  (std::ssize(census.units) < census.measures.values ? numbers : census.texts) += census.measures;
  const Votes& texts = census.texts;
  if (numbers.rows == 0 || (texts.rows > numbers.rows && texts.values > numbers.values)) return false;
  fail_value(table, *census.odd_row, column,
             "found '" + one_line(table.rows[static_cast<std::size_t>(*census.odd_row)][place]) + "', expected " +
                 expected_number(census.odd.kind, census.plain.rows, column));
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
