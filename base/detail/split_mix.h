#pragma once

#include <cstdint>

// SplitMix64, whose rule is the same with every standard library.

namespace duet {

inline uint64_t scrambled(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// The next number of a generator.
inline uint64_t next_random(uint64_t& state) { return scrambled(state += 0x9E3779B97F4A7C15ULL); }

// Neighbouring numbers give unrelated ones.
inline uint64_t mixed_bits(uint64_t x) { return next_random(x); }

}  // namespace duet
