#pragma once

#include <string>
#include <utility>

namespace duet {

// The lines in which two texts differ first; "nothing" where one of them has ended.
std::pair<std::string, std::string> first_different_lines(const std::string& a, const std::string& b);

}  // namespace duet
