#include "base/detail/name_pattern.h"
#include <cstddef>

namespace duet {

// After a mismatch the last * takes one more.
bool fits_whole(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool fits_pattern(std::string_view pattern, std::string_view name) {
  if (fits_whole(pattern, name)) return true;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    if (fits_whole(pattern, name.substr(0, dot))) return true;
  }
  return false;
}

}  // namespace duet
