#pragma once

#include <cstdint>
#include <immintrin.h>
#include "graph/kernels/ordered.h"

// The vector operations of avx512_simd.h for AVX2 and FMA.

namespace duet {

namespace {

constexpr int kLanes = 8;

using Floats = __m256;
using Ints = __m256i;
using Mask = __m256i;  // all bits of a lane are set or none

inline Ints broadcast_int(int value) { return _mm256_set1_epi32(value); }
inline Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints ramp(int start, int step) {
  const Ints lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return add_ints(broadcast_int(start), _mm256_mullo_epi32(lanes, broadcast_int(step)));
}

inline Mask first_lanes(int64_t count) {
  const int lanes = count >= kLanes ? kLanes : static_cast<int>(count);
  return _mm256_cmpgt_epi32(broadcast_int(lanes), ramp(0, 1));
}

inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline Floats load(const float* from, Mask mask) { return _mm256_maskload_ps(from, mask); }
inline void store(float* to, Floats values) { _mm256_storeu_ps(to, values); }
// By way of memory: some CPUs take long for a store with a mask.
inline void store_first(float* to, Floats values, int64_t count) {
  if (count >= kLanes) return store(to, values);
  float lanes[kLanes];
  store(lanes, values);
  for (int64_t i = 0; i < count; ++i) to[i] = lanes[i];
}

inline Floats broadcast(float value) { return _mm256_set1_ps(value); }
inline Floats select(Mask mask, Floats yes, Floats no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(mask)); }
inline Ints select(Mask mask, Ints yes, Ints no) { return _mm256_blendv_epi8(no, yes, mask); }

DUET_ORDERED(Floats, add, "%{vex3%} vaddps", "x")
DUET_ORDERED(Floats, subtract, "%{vex3%} vsubps", "x")
DUET_ORDERED(Floats, multiply, "%{vex3%} vmulps", "x")
DUET_ORDERED(__m256d, add_doubles, "%{vex3%} vaddpd", "x")
DUET_ORDERED_FUSED(Floats, multiply_add, "vfmadd132ps", "x")
DUET_ORDERED_FUSED(Floats, subtract_product, "vfnmadd132ps", "x")
inline Floats divide(Floats value, Floats by) { return _mm256_div_ps(value, by); }
inline Floats square_root(Floats value) { return _mm256_sqrt_ps(value); }
inline Floats fused(Floats first, Floats second, Floats sum) { return _mm256_fmadd_ps(first, second, sum); }
[[gnu::always_inline]] inline Floats add_product(Floats first, Floats second, Floats sum) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(first), "x"(second));
  return sum;
}

[[gnu::always_inline]] inline Floats add_product(const float* first, Floats second, Floats sum) {
  return add_product(broadcast(*first), second, sum);
}

inline Mask less(Floats value, Floats than) { return _mm256_castps_si256(_mm256_cmp_ps(value, than, _CMP_LT_OQ)); }
inline Mask greater_or_nan(Floats value, Floats than) {
  return _mm256_castps_si256(
      _mm256_or_ps(_mm256_cmp_ps(value, than, _CMP_GT_OQ), _mm256_cmp_ps(value, value, _CMP_UNORD_Q)));
}

inline Floats or_nan(Floats values, Floats other) {
  return _mm256_or_ps(values, _mm256_cmp_ps(other, other, _CMP_UNORD_Q));
}

inline void store_wide(int64_t* to, Ints values, int64_t count) {
  const auto store_all = [&](int64_t* at) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_cvtepi32_epi64(_mm256_castsi256_si128(values)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + kLanes / 2),
                        _mm256_cvtepi32_epi64(_mm256_extracti128_si256(values, 1)));
  };
  if (count >= kLanes) return store_all(to);
  int64_t lanes[kLanes];
  store_all(lanes);
  for (int64_t i = 0; i < count; ++i) to[i] = lanes[i];
}
inline Floats even(Floats low, Floats high) {
  const __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xD8));
}
inline Floats odd(Floats low, Floats high) {
  const __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xDD));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xD8));
}
inline void transpose(Floats (&rows)[kLanes]) {
  Floats pairs[kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  Floats fours[kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

struct Sums {
  __m256d low = _mm256_setzero_pd();
  __m256d high = _mm256_setzero_pd();
};
inline void add_to(Sums& sums, Floats values) {
  sums.low = add_doubles(sums.low, _mm256_cvtps_pd(_mm256_castps256_ps128(values)));
  sums.high = add_doubles(sums.high, _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)));
}
inline void store(double* to, const Sums& sums) {
  _mm256_storeu_pd(to, sums.low);
  _mm256_storeu_pd(to + kLanes / 2, sums.high);
}

// Whether any of the vectors seen had a NaN.
class NanWatch {
 public:
  void see(Floats values) { seen_ = _mm256_or_ps(seen_, _mm256_cmp_ps(values, values, _CMP_UNORD_Q)); }
  void see(const NanWatch& other) { seen_ = _mm256_or_ps(seen_, other.seen_); }
  bool any() const { return _mm256_movemask_ps(seen_) != 0; }

 private:
  Floats seen_ = _mm256_setzero_ps();
};

inline Floats greater(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats round_down(Floats values) { return _mm256_floor_ps(values); }
inline Floats round_nearest(Floats values) {
  return _mm256_round_ps(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Floats power_of_two(Floats exponent) {
  const Ints biased = add_ints(_mm256_cvtps_epi32(exponent), broadcast_int(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
// The sign bits alone, and numbers with those turned.
inline Floats signs_of(Floats values) { return _mm256_and_ps(values, broadcast(-0.0F)); }
inline Floats turned(Floats values, Floats signs) { return _mm256_xor_ps(values, signs); }
inline Mask is_minus_zero(Floats values) {
  return _mm256_cmpeq_epi32(_mm256_castps_si256(values), _mm256_castps_si256(broadcast(-0.0F)));
}

// All lanes combined, in the order of ATen's vectors.
template <class Combine>
float fold_lanes(Floats v, Combine combine) {
  v = combine(v, _mm256_permute2f128_ps(v, v, 0x01));
  v = combine(v, _mm256_shuffle_ps(v, v, 0x4E));
  v = combine(v, _mm256_shuffle_ps(v, v, 0xB1));
  return _mm256_cvtss_f32(v);
}

constexpr const char* kVectorLog = "Sleef_logf8_u10";

// The sum of all lanes in the order of ATen's vectors, and of two NaN the one that is ATen's.
inline float sum_of_lanes(Floats v) {
  v = add(v, _mm256_permute2f128_ps(v, v, 0x01));
  v = add(_mm256_shuffle_ps(v, v, 0x4E), v);
  v = add(_mm256_shuffle_ps(v, v, 0xB1), v);
  return _mm256_cvtss_f32(v);
}

}  // namespace

}  // namespace duet
