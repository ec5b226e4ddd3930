#pragma once

#include <string>
#include <vector>

namespace duet {

// Rows of cells as lines with aligned columns, two spaces apart. Names may come from anywhere: each cell is shown as
// one_line() has it.
std::string text_columns(const std::vector<std::vector<std::string>>& rows);

// A number by printf's `format`; "NaN" as such.
std::string number_text(double value, const char* format = "%.6g");

}  // namespace duet
