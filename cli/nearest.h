#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace duet {

// The candidate with the smallest edit distance to `word`, case ignored; empty without candidates.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "a, b, c"; "nothing" for an empty list.
std::string join(const std::vector<std::string>& words);

// "known: a, b, c; did you mean 'b'?"
std::string known_and_nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace duet
