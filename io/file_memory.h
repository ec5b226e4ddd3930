#pragma once

#include <cstdint>

namespace duet {

// What the contents of a file may take in memory, or on disk once they are written out: 256 MiB, and `times` the size
// of the file. A small file can therefore not ask for much, whatever its header says. DUET_FILE_MEMORY=8GiB in the
// environment replaces the 256 MiB; ConfigError if it is no size.
uint64_t file_memory(uint64_t file_bytes, uint64_t times);

// What a message says to who meets the limit with an honest file.
inline constexpr const char* kFileMemoryWayOut =
    "if you trust where it comes from, raise the limit: DUET_FILE_MEMORY=8GiB in the environment";

// The memory that one file may still take.
class FileBudget {
 public:
  FileBudget(uint64_t file_bytes, uint64_t times) : limit_(file_memory(file_bytes, times)), left_(limit_) {}

  // Throws MalformedFile "`what` unfolds to more than ..." once there is none left.
  void charge(uint64_t bytes, const char* what) {
    if (bytes > left_) refuse(what);
    left_ -= bytes;
  }

 private:
  [[noreturn]] void refuse(const char* what) const;

  uint64_t limit_, left_;
};

}  // namespace duet
