#include "base/detail/name_pattern.h"
#include <cstddef>
#include <fnmatch.h>

namespace duet {

bool fits_whole(std::string_view pattern, std::string_view name) {
  return ::fnmatch(std::string(pattern).c_str(), std::string(name).c_str(), FNM_NOESCAPE) == 0;
}

bool fits_pattern(std::string_view pattern, std::string_view name) {
  if (fits_whole(pattern, name)) return true;
  const std::size_t dot = name.rfind('.');
  return dot != std::string_view::npos && fits_pattern(pattern, name.substr(0, dot));
}

std::string dotted_parent(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

}  // namespace duet
