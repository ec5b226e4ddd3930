#pragma once

#include <algorithm>
#include <cstdint>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "io/file_memory.h"

namespace duet {

// Of a picture, as the head of its file has it: `bytes` is what reading takes for each pixel.
struct PictureSize {
  uint64_t height = 0, width = 0, bytes = 0;
};

// Of a pixel that is trained on: its three levels, and floats of them.
inline constexpr uint64_t kPixelBytes = 15;

// A picture of one colour takes little room in a file: 1000 pixels to a byte in PNG.
inline constexpr uint64_t kPictureTimes = 64, kMaxPixels = uint64_t{1} << 28;

// DataError if a file of `file_bytes` may not ask for that much, or nobody may.
inline void check_picture(const char* format, const PictureSize& size, uint64_t file_bytes) {
  const uint64_t limit = std::min(file_memory(file_bytes, kPictureTimes) / size.bytes, kMaxPixels);
  if (size.width == 0 || size.height <= limit / size.width) return;
  const bool is_too_large = size.height > kMaxPixels / size.width;
  throw DataError(c10::str("[", format, "] found a picture of ", size.height, " x ", size.width, " pixels in ",
                           file_bytes, " bytes, expected at most ", limit, " pixels in as many; ",
                           is_too_large ? "scale it down" : kFileMemoryWayOut));
}

}  // namespace duet
