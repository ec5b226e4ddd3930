#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include "base/error.h"
#include "tests/fuzz/foreign_readers.h"

// libFuzzer's entry. DUET_FUZZ_KIND names the reader.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const duet::ForeignReader& reader = duet::foreign_reader(DUET_FUZZ_KIND);
  static const int file = memfd_create("input", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  const std::string bytes = reader.wrap({reinterpret_cast<const char*>(data), size});
  if (ftruncate(file, 0) != 0 || pwrite(file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return -1;
  }
  try {
    static_cast<void>(reader.read(path));
  } catch (const duet::Error&) {
    return 0;  // refused
  }
  return 0;
}
