#pragma once

#include <string>
#include <string_view>

namespace duet {

// Whether `pattern` of the shell (* any text, ? any character, [abc] one of them) is all of `name`.
bool fits_whole(std::string_view pattern, std::string_view name);

// Or its beginning up to a dot: a parameter's name fits the pattern of its module.
bool fits_pattern(std::string_view pattern, std::string_view name);

// "layers.0" of "layers.0.weight"; empty for a name without dots.
std::string dotted_parent(const std::string& name);

}  // namespace duet
