#pragma once

#include <string>
#include <vector>

namespace duet {

// Rows of cells as lines with aligned columns, two spaces apart. Names may come from anywhere: control characters,
// which a terminal would obey, are shown as '?'.
std::string text_columns(const std::vector<std::vector<std::string>>& rows);

// `text` as one line of a terminal: control characters are '?'.
std::string one_line(std::string text);

}  // namespace duet
