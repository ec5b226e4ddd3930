#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

namespace duet {

// Not where a sanitizer takes all address space, or ends a process that is refused memory. AddressSanitizer may be that
// of the library alone, to which the same tests are linked.
inline bool memory_can_be_limited() {
  return std::string_view(DUET_SANITIZE).empty() && std::getenv("ASAN_OPTIONS") == nullptr;
}

// For as long as it lives, this process may take `bytes` of address space more than it has; beyond, memory is refused.
// Under a sanitizer of everything, which takes its own, nothing is limited.
class MemoryLimit {
 public:
  explicit MemoryLimit(uint64_t bytes) {
    malloc_trim(0);  // what was freed before does not count
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + bytes;
    if (std::string_view(DUET_SANITIZE).empty()) setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace duet
