#include "cli/runs/text_columns.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include "base/detail/text.h"

namespace duet {

namespace {

// Characters, not bytes: UTF-8 continues with 10xxxxxx.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string text_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> cells;
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    cells.emplace_back();
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      cells.back().push_back(one_line(row[i]));
      widths[i] = std::max(widths[i], width_of(cells.back()[i]));
    }
  }
  std::string text;
  for (const auto& row : cells) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += (i == 0 ? "" : "  ") + row[i] + std::string(widths[i] - width_of(row[i]), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string number_text(double value, const char* format) {
  if (std::isnan(value)) return "NaN";
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace duet
