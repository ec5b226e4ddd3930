#pragma once

#include <cstring>
#include "graph/kernels/pointwise_kernels.h"

// mt19937 as ATen has it (ATen/core/MT19937RNGEngine.h), whole blocks of words at a time. Loops that compilers turn
// into vectors.

namespace duet {

namespace {

inline uint32_t twisted(uint32_t word, uint32_t next) {
  constexpr uint32_t kUpper = 0x80000000, kLower = 0x7fffffff, kMatrix = 0x9908b0df;
  return (((word & kUpper) | (next & kLower)) >> 1) ^ ((0U - (next & 1U)) & kMatrix);
}

void make_words(uint32_t* state) {
  constexpr int64_t kShift = 397, kRest = kMersenneWords - kShift;
  for (int64_t i = 0; i < kRest; ++i) state[i] = state[i + kShift] ^ twisted(state[i], state[i + 1]);
  for (int64_t i = kRest; i < kMersenneWords - 1; ++i) state[i] = state[i - kRest] ^ twisted(state[i], state[i + 1]);
  state[kMersenneWords - 1] = state[kShift - 1] ^ twisted(state[kMersenneWords - 1], state[0]);
}

inline uint32_t tempered(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680;
  y ^= (y << 15) & 0xefc60000;
  return y ^ (y >> 18);
}

inline float drawn(const Bernoulli& work, uint32_t first, uint32_t second) {
  constexpr uint32_t kUpperBits = (1U << 21) - 1;
  const uint64_t bits = static_cast<uint64_t>(first & kUpperBits) << 32 | second;
  return bits < work.below ? work.one : work.zero;
}

inline uint32_t next_word(Bernoulli& work) {
  if (work.left == 0) {
    make_words(work.state);
    work.next = 0;
    work.left = kMersenneWords;
  }
  --work.left;
  return tempered(work.state[work.next++]);
}

// All of the block's words that come in pairs.
void draw_pairs(Bernoulli& work) {
  const int64_t pairs = work.left / 2 < work.count ? work.left / 2 : work.count;
  uint32_t words[kMersenneWords];
  for (int64_t i = 0; i < 2 * pairs; ++i) words[i] = tempered(work.state[work.next + i]);
  const Bernoulli from = work;
  for (int64_t i = 0; i < pairs; ++i) from.y[i] = drawn(from, words[2 * i], words[2 * i + 1]);
  work.next += 2 * pairs;
  work.left -= 2 * pairs;
  work.y += pairs;
  work.count -= pairs;
}

void bernoulli(Bernoulli& work) {
  draw_pairs(work);
  while (work.count > 0) {
    const uint32_t first = next_word(work);  // whose second word may lie in another block
    *work.y++ = drawn(work, first, next_word(work));
    --work.count;
    draw_pairs(work);
  }
}

}  // namespace

}  // namespace duet
