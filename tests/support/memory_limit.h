#pragma once

#include <cstdint>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

namespace duet {

// For as long as it lives, this process may take `bytes` of address space more than it has; beyond, memory is refused.
// Under AddressSanitizer, which takes its own, nothing is limited.
class MemoryLimit {
 public:
  explicit MemoryLimit(uint64_t bytes) {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + bytes;
#ifndef __SANITIZE_ADDRESS__
    setrlimit(RLIMIT_AS, &limit);
#endif
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace duet
