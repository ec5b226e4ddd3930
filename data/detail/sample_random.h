#pragma once

#include <cstdint>
#include <initializer_list>

namespace duet {

// SplitMix64: neighbouring numbers give unrelated ones.
inline uint64_t mixed_bits(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace duet
