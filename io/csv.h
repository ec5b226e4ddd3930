#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace duet {

// A table as RFC 4180 writes it: a line of column names, then a line per row. Quoted fields may hold the separator,
// line ends and doubled quotes.
struct CsvTable {
  std::string path;
  uint64_t bytes = 0;  // of its text
  std::vector<std::string> columns;
  std::map<std::string, std::size_t> places;  // of the columns
  std::vector<std::vector<std::string>> rows;
  std::vector<std::size_t> lines;  // of each row in the file, from 1

  // Place of the column called `name`; throws DataError that lists the names there are.
  std::size_t column(const std::string& name) const;
};

// What a table takes in memory, and what is made of it: at most file_memory() of its text and so many times.
inline constexpr uint64_t kCsvTimes = 24;

// Separated by `separator`. Throws DataError naming file and line: no column names, a name twice, a row with more or
// fewer fields than there are columns, a quote that does not end.
CsvTable read_csv(const std::string& path, char separator = ',');
CsvTable parse_csv(std::string_view text, const std::string& path, char separator = ',');

}  // namespace duet
