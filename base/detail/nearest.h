#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace duet {

// The candidate with the smallest edit distance to `word`, case ignored, or that begins or ends with it; empty if none
// is near: more slips than a third of the letters make another word of it.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// The candidate that is `word` but for a slip or two; empty if none is that near.
std::string misspelling_of(std::string_view word, const std::vector<std::string>& candidates);

// The `count` nearest candidates, nearest first, each once.
std::vector<std::string> nearest_names(std::string_view word, std::vector<std::string> candidates, std::size_t count);

// "a, b, c"; "nothing" for an empty list.
std::string join(const std::vector<std::string>& words);

// "; did you mean 'b'?"; empty if none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// "known: a, b, c; did you mean 'b'?"
std::string known_and_nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace duet
