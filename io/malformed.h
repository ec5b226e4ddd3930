#pragma once

#include <string>

namespace duet {

// What is wrong with a file that is being read, and what to do about it. Thrown by parsers that see only bytes; the
// function that knows the file's name makes an error of it. Private to core.
struct MalformedFile {
  std::string what;
  std::string way_out = "write or download the file again";
};

}  // namespace duet
