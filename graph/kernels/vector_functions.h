#pragma once

#include <dlfcn.h>
#include <math.h>

// The functions that ATen's vectors call, with their bits. For the vectors of *_simd.h, which is included before.

namespace duet {

namespace {

// SLEEF's logarithm, which LibTorch carries and exports.
using VectorFunction = Floats (*)(Floats);
VectorFunction vector_log = nullptr;

bool find_vector_functions() {
  vector_log = reinterpret_cast<VectorFunction>(dlsym(RTLD_DEFAULT, kVectorLog));
  return vector_log != nullptr;
}

// SLEEF's exponential (Sleef_expf8_u10, Sleef_expf16_u10), here so that it is no call: 2^power times that of the rest.
[[gnu::always_inline]] inline Floats vector_exp(Floats x) {
  const Floats power = round_nearest(multiply(x, broadcast(0x1.715476p+0F)));  // log2(e)
  const Floats rest =
      fused(power, broadcast(-1.428606765330187045e-06F), fused(power, broadcast(-0.693145751953125F), x));
  Floats sum = broadcast(0.000198527617612853646278381F);
  constexpr float kFactors[] = {0.00139304355252534151077271F, 0.00833336077630519866943359F,
                                0.0416664853692054748535156F, 0.166666671633720397949219F, 0.5F};
#pragma GCC unroll 5
  for (const float factor : kFactors) sum = fused(sum, rest, broadcast(factor));
  sum = add(broadcast(1.0F), fused(multiply(rest, rest), sum, rest));
  const Floats half = round_down(multiply(power, broadcast(0.5F)));
  const Floats result = multiply(multiply(sum, power_of_two(half)), power_of_two(subtract(power, half)));
  const Floats finite = select(less(x, broadcast(-104.0F)), broadcast(0.0F), result);
  return select(less(broadcast(100.0F), x), broadcast(INFINITY), finite);
}

// The exponential of oneDNN, and with kFused Vectorized::exp_u20, which ATen has from there.
template <bool kFused>
Floats vector_exp_u20(Floats x) {
  const Floats lowest = broadcast(-0x1.5d58a0p+6F), one = broadcast(1.0F);
  const Floats log2e = broadcast(0x1.715476p+0F), half = broadcast(0.5F);
  const Floats clamped = greater(smaller(x, broadcast(0x1.62e430p+6F)), lowest);
  const Floats power = round_down(kFused ? fused(clamped, log2e, half) : add(multiply(clamped, log2e), half));
  const Floats rest = fused(power, broadcast(-0x1.62e430p-1F), clamped);
  Floats sum = broadcast(0.00828929059F);
  constexpr float kFactors[] = {0.0418978221F, 0.166676521F, 0.499991506F, 0.999999701F, 1.0F};
#pragma GCC unroll 5
  for (const float factor : kFactors) sum = fused(sum, rest, broadcast(factor));
  const Floats half_of_power = select(less(x, lowest), broadcast(0.0F), power_of_two(subtract(power, one)));
  return multiply(multiply(sum, half_of_power), broadcast(2.0F));
}

}  // namespace

}  // namespace duet
