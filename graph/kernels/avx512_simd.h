#pragma once

#include <cstdint>
#include <immintrin.h>
#include "graph/kernels/ordered.h"

// The vector operations of the kernels, for AVX-512. avx2_simd.h has the same but for those of max_pool_tiles.h
// and gelu_minimax_loops.h.

namespace duet {

namespace {

constexpr int kLanes = 16;

using Floats = __m512;
using Ints = __m512i;
using Mask = __mmask16;

inline Mask first_lanes(int64_t count) {
  return count >= kLanes ? static_cast<Mask>(0xFFFF) : static_cast<Mask>((1U << count) - 1);
}

inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load(const float* from, Mask mask) { return _mm512_maskz_loadu_ps(mask, from); }
inline void store(float* to, Floats values) { _mm512_storeu_ps(to, values); }
inline void store_first(float* to, Floats values, int64_t count) {
  _mm512_mask_storeu_ps(to, first_lanes(count), values);
}

inline Floats broadcast(float value) { return _mm512_set1_ps(value); }
inline Floats select(Mask mask, Floats yes, Floats no) { return _mm512_mask_blend_ps(mask, no, yes); }
inline Ints select(Mask mask, Ints yes, Ints no) { return _mm512_mask_blend_epi32(mask, no, yes); }

DUET_ORDERED(Floats, add, "vaddps", "v")
DUET_ORDERED(Floats, subtract, "vsubps", "v")
DUET_ORDERED(Floats, multiply, "vmulps", "v")
DUET_ORDERED(__m512d, add_doubles, "vaddpd", "v")
DUET_ORDERED_FUSED(Floats, multiply_add, "vfmadd132ps", "v")
DUET_ORDERED_FUSED(Floats, subtract_product, "vfnmadd132ps", "v")
inline Floats divide(Floats value, Floats by) { return _mm512_div_ps(value, by); }
inline Floats square_root(Floats value) { return _mm512_sqrt_ps(value); }
inline Floats fused(Floats first, Floats second, Floats sum) { return _mm512_fmadd_ps(first, second, sum); }
// sum + first * second: of several NaN that of the first factor, then the second's.
[[gnu::always_inline]] inline Floats add_product(Floats first, Floats second, Floats sum) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(first), "v"(second));
  return sum;
}

[[gnu::always_inline]] inline Floats add_product(const float* first, Floats second, Floats sum) {
  asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(second), "m"(*first));
  return sum;
}

inline Mask less(Floats value, Floats than) { return _mm512_cmp_ps_mask(value, than, _CMP_LT_OQ); }
// Whether any of the vectors seen had a NaN.
class NanWatch {
 public:
  void see(Floats values) { seen_ = static_cast<Mask>(seen_ | _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q)); }
  void see(const NanWatch& other) { seen_ = static_cast<Mask>(seen_ | other.seen_); }
  bool any() const { return seen_ != 0; }

 private:
  Mask seen_ = 0;
};

inline Floats greater(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats round_down(Floats values) {
  return _mm512_roundscale_ps(values, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
inline Floats round_nearest(Floats values) {
  return _mm512_roundscale_ps(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// 2 to the power of whole numbers; 0 for -127.
inline Floats power_of_two(Floats exponent) {
  const Ints biased = _mm512_add_epi32(_mm512_cvtps_epi32(exponent), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}
// The sign bits alone, and numbers with those turned.
inline Floats signs_of(Floats values) {
  return _mm512_castsi512_ps(_mm512_and_epi32(_mm512_castps_si512(values), _mm512_castps_si512(broadcast(-0.0F))));
}
inline Floats turned(Floats values, Floats signs) {
  return _mm512_castsi512_ps(_mm512_xor_epi32(_mm512_castps_si512(values), _mm512_castps_si512(signs)));
}
inline Mask is_minus_zero(Floats values) {
  return _mm512_cmpeq_epi32_mask(_mm512_castps_si512(values), _mm512_castps_si512(_mm512_set1_ps(-0.0F)));
}

// All lanes combined, in the order of ATen's vectors.
template <class Combine>
float fold_lanes(Floats v, Combine combine) {
  v = combine(v, _mm512_shuffle_f32x4(v, v, 0x4E));
  v = combine(v, _mm512_shuffle_f32x4(v, v, 0xB1));
  v = combine(v, _mm512_shuffle_ps(v, v, 0x4E));
  v = combine(v, _mm512_shuffle_ps(v, v, 0xB1));
  return _mm512_cvtss_f32(v);
}

constexpr const char* kVectorLog = "Sleef_logf16_u10";

inline Mask greater_or_nan(Floats value, Floats than) {
  return _mm512_cmp_ps_mask(value, than, _CMP_GT_OQ) | _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
}

// `values`, with all bits set where the other number is a NaN.
inline Floats or_nan(Floats values, Floats other) {
  const Mask is_nan = _mm512_cmp_ps_mask(other, other, _CMP_UNORD_Q);
  return _mm512_mask_blend_ps(is_nan, values, _mm512_castsi512_ps(_mm512_set1_epi32(-1)));
}

inline Ints broadcast_int(int value) { return _mm512_set1_epi32(value); }
inline Ints bits_of(Floats values) { return _mm512_castps_si512(values); }
inline Ints shift_right(Ints values, unsigned bits) { return _mm512_srai_epi32(values, bits); }
inline Ints greater(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
inline Ints smaller(Ints a, Ints b) { return _mm512_min_epi32(a, b); }
// The numbers at these places of a table of two vectors.
inline Floats look_up(const float* table, Ints places) {
  return _mm512_permutex2var_ps(load(table), places, load(table + kLanes));
}
inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Mask equal(Ints a, Ints b) { return _mm512_cmpeq_epi32_mask(a, b); }
// start, start + step, start + 2 step ...
inline Ints ramp(int start, int step) {
  const Ints lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return add_ints(broadcast_int(start), _mm512_mullo_epi32(lanes, broadcast_int(step)));
}

inline void store_wide(int64_t* to, Ints values, int64_t count) {
  const Mask mask = first_lanes(count);
  const __m512i low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(values));
  const __m512i high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(values, 1));
  _mm512_mask_storeu_epi64(to, static_cast<__mmask8>(mask), low);
  _mm512_mask_storeu_epi64(to + kLanes / 2, static_cast<__mmask8>(mask >> (kLanes / 2)), high);
}
inline Ints load_wide(const int64_t* from, Mask mask) {
  const __m512i low = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(mask), from);
  const __m512i high = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(mask >> (kLanes / 2)), from + kLanes / 2);
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(low)), _mm512_cvtepi64_epi32(high), 1);
}

// The elements of two vectors that lie one after the other, taken apart and put together again.
inline Floats even(Floats low, Floats high) { return _mm512_permutex2var_ps(low, ramp(0, 2), high); }
inline Floats odd(Floats low, Floats high) { return _mm512_permutex2var_ps(low, ramp(1, 2), high); }
inline Floats interleave_low(Floats even, Floats odd) {
  const Ints order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return _mm512_permutex2var_ps(even, order, odd);
}
inline Floats interleave_high(Floats even, Floats odd) {
  const Ints order = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return _mm512_permutex2var_ps(even, order, odd);
}

inline void transpose(Floats (&rows)[kLanes]) {
  Floats pairs[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  Floats fours[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i += 4) {
    fours[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    fours[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    const Floats a = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0x88);
    const Floats b = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0xDD);
    const Floats c = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0x88);
    const Floats d = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0xDD);
    rows[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    rows[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    rows[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD);
    rows[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

// A sum of doubles for each lane.
struct Sums {
  __m512d low = _mm512_setzero_pd();
  __m512d high = _mm512_setzero_pd();
};
inline void add_to(Sums& sums, Floats values) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(values), 1));
  sums.low = add_doubles(sums.low, _mm512_cvtps_pd(_mm512_castps512_ps256(values)));
  sums.high = add_doubles(sums.high, _mm512_cvtps_pd(high));
}
inline void store(double* to, const Sums& sums) {
  _mm512_storeu_pd(to, sums.low);
  _mm512_storeu_pd(to + kLanes / 2, sums.high);
}

}  // namespace

}  // namespace duet
