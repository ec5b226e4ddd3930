#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace duet::testing {

// As numpy.save writes it.
inline std::string npy_bytes(const std::string& entries, const std::string& values) {
  std::string header = "{" + entries + ", }";
  header.resize((header.size() + 10 + 64) / 64 * 64 - 11, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(length & 255);
  bytes += static_cast<char>(length >> 8);
  return bytes + header + values;
}

template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
}

inline std::string npy_entries(const std::string& dtype, const std::string& shape,
                               const std::string& fortran = "False") {
  return "'descr': '" + dtype + "', 'fortran_order': " + fortran + ", 'shape': (" + shape + ")";
}

}  // namespace duet::testing
