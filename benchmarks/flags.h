#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace duet::benchmarks {

// The words of the command line: "--flag" alone, or followed by its value.
class Flags {
 public:
  Flags(int argc, char** argv) : words_(argv + 1, argv + argc) {}

  bool has(const std::string& flag) const { return std::find(words_.begin(), words_.end(), flag) != words_.end(); }
  // What comes after `flag`; empty if nothing does.
  std::string text(const std::string& flag) const {
    const auto found = std::find(words_.begin(), words_.end(), flag);
    return found == words_.end() || found + 1 == words_.end() ? "" : found[1];
  }
  // A number of at least 1.
  int64_t number(const std::string& flag, int64_t otherwise) const {
    const std::string value = text(flag);
    return value.empty() ? otherwise : std::max<int64_t>(1, std::atoll(value.c_str()));
  }

 private:
  std::vector<std::string> words_;
};

}  // namespace duet::benchmarks
