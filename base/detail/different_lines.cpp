#include "base/detail/different_lines.h"
#include <sstream>

namespace duet {

std::pair<std::string, std::string> first_different_lines(const std::string& a, const std::string& b) {
  std::istringstream one(a), other(b);
  std::string x, y;
  while (true) {
    const bool more = static_cast<bool>(std::getline(one, x)), too = static_cast<bool>(std::getline(other, y));
    if (!more) x = "nothing";
    if (!too) y = "nothing";
    if (x != y || (!more && !too)) return {x, y};
  }
}

}  // namespace duet
