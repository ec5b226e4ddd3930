#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>
#include "base/detail/text.h"
#include "io/csv.h"

// What a field of a table says. Errors are DataError and name file, line and column.

namespace duet {

// Numbers by their value, then texts by their letters: class 10 comes after class 9.
struct ByNumberThenText {
  bool operator()(const std::string& a, const std::string& b) const {
    const double first = number_or_infinity(a), second = number_or_infinity(b);
    return std::tie(first, a) < std::tie(second, b);
  }

 private:
  static double number_or_infinity(const std::string& text) {
    const std::optional<double> number = parse_number<double>(text);
    return number && std::isfinite(*number) ? *number : HUGE_VAL;
  }
};

using ClassNames = std::set<std::string, ByNumberThenText>;

// "+5" too; nothing for infinities, NaN and other texts.
std::optional<double> finite_number(const std::string& text);
// Whether a column holds numbers in these rows, rather than categories. Where it holds some and other texts beside them
// that neither most rows nor most of its values are, the first of these is an error: no category is made by mistake.
// What stands for a missing value, as NA, is neither.
bool holds_numbers(const CsvTable& table, const std::vector<int64_t>& rows, const std::string& column);

[[noreturn]] void fail_value(const CsvTable& table, int64_t row, const std::string& column, const std::string& what);

double number_in(const CsvTable& table, int64_t row, std::size_t column);
// `number`, made of that field, as what tensors hold.
float float_in(double number, const CsvTable& table, int64_t row, std::size_t column);
// A class of 0 to `count` - 1.
int64_t class_in(int64_t count, const CsvTable& table, int64_t row, std::size_t column);
// Its place among the categories, which are sorted.
int64_t category_in(const std::vector<std::string>& categories, const CsvTable& table, int64_t row, std::size_t column);

}  // namespace duet
