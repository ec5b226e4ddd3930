#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <zlib.h>

namespace duet {

// Bytes of an IDX file; `payload` as it stands in the file (big-endian).
inline std::string idx_bytes(int type, const std::vector<uint32_t>& shape, const std::string& payload) {
  std::string bytes{'\0', '\0', static_cast<char>(type), static_cast<char>(shape.size())};
  for (const uint32_t size : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(size >> shift & 0xFF));
  }
  return bytes + payload;
}

// Writes `bytes` gzipped to `path`.
inline void write_gz(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose_w(file);
}

}  // namespace duet
