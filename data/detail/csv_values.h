#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "io/csv.h"

// What a field of a table says. Errors are DataError and name file, line and column.

namespace duet {

// "+5" too; nothing for infinities, NaN and other texts.
std::optional<double> finite_number(const std::string& text);
// "1,5", "1.000,5", "5 %": numbers of another spelling, which would pass for categories.
bool looks_like_number(const std::string& text);

[[noreturn]] void fail_value(const CsvTable& table, int64_t row, const std::string& column, const std::string& what);

double number_in(const CsvTable& table, int64_t row, std::size_t column);
// `number`, made of that field, as what tensors hold.
float float_in(double number, const CsvTable& table, int64_t row, std::size_t column);
// A class of 0 to `count` - 1.
int64_t class_in(int64_t count, const CsvTable& table, int64_t row, std::size_t column);
// Its place among the categories, which are sorted.
int64_t category_in(const std::vector<std::string>& categories, const CsvTable& table, int64_t row, std::size_t column);

}  // namespace duet
