#pragma once

#include <cstdint>

namespace duet {

// One number of many, one after the other: begin with 0. Small numbers change all bits of it, so any part may be kept.
inline uint64_t hash_with(uint64_t hash, uint64_t value) {
  hash = (hash ^ (value + 0x9e3779b97f4a7c15)) * 0xff51afd7ed558ccd;
  return hash ^ (hash >> 32);
}

}  // namespace duet
