#pragma once

#include <string>
#include <vector>

namespace duet {

// Rows of cells, the first one the header, in aligned columns: the first to the left, the others to the right.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

// 0.8125 as "0.8125", NaN as "nan".
std::string four_digits(double value);

}  // namespace duet
