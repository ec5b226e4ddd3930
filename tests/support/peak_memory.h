#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace duet {

// A number of /proc/self/status that is in KiB, in bytes.
inline uint64_t memory_of_process(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) << 10;
  }
  return 0;
}

// The most memory that `call` has taken beside what this process had.
template <class Call>
uint64_t peak_memory(const Call& call) {
  const uint64_t before = memory_of_process("VmRSS");
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
  call();
  const uint64_t peak = memory_of_process("VmHWM");
  return peak > before ? peak - before : 0;
}

}  // namespace duet
