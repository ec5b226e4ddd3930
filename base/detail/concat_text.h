#pragma once

#include <ios>
#include <sstream>
#include <string>

namespace duet {

// The parts as one text, in the way of c10::str, for names, paths and contents of files. Throws std::bad_alloc where
// memory runs out: a stream by itself, and c10::str with it, goes on with a text cut short, which names something else.
template <class... Parts>
std::string concat_text(const Parts&... parts) {
  std::ostringstream text;
  text.exceptions(std::ios::badbit);
  (text << ... << parts);
  return std::move(text).str();
}

}  // namespace duet
