#include "io/file_memory.h"
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "io/file_io.h"

namespace duet {

namespace {

constexpr uint64_t kFloor = uint64_t{256} << 20;
constexpr const char* kVariable = "DUET_FILE_MEMORY";

// "8GiB", "512MiB" or a number of bytes.
uint64_t floor_of(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, int>, 4> kUnits = {
      {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
  std::string_view digits = text;
  int shift = 0;
  for (const auto& [unit, bits] : kUnits) {
    if (!text.ends_with(unit)) continue;
    digits.remove_suffix(unit.size());
    shift = bits;
  }
  const auto number = parse_number<uint64_t>(digits);
  if (number && *number <= (uint64_t{1} << 62) >> shift) return *number << shift;
  throw ConfigError(c10::str("[file_memory] the environment variable ", kVariable, " is '", one_line(text),
                             "', expected bytes or a size such as 8GiB; correct or unset it"));
}

}  // namespace

uint64_t file_memory(uint64_t file_bytes, uint64_t times) {
  const char* const given = std::getenv(kVariable);
  const uint64_t floor = given == nullptr ? kFloor : floor_of(given);
  uint64_t share = 0, limit = 0;
  const bool overflows =
      __builtin_mul_overflow(file_bytes, times, &share) || __builtin_add_overflow(floor, share, &limit);
  return overflows ? UINT64_MAX : limit;
}

void FileBudget::refuse(const char* what) const {
  throw MalformedFile{c10::str(what, " unfolds to more than the ", limit_, " bytes that a file of its size may take"),
                      kFileMemoryWayOut};
}

}  // namespace duet
