#pragma once

#include <dlfcn.h>

// SLEEF's functions that ATen's vectors call: LibTorch carries and exports them. For the vectors of *_simd.h, which is
// included before.

namespace duet {

namespace {

using VectorFunction = Floats (*)(Floats);
VectorFunction vector_exp = nullptr, vector_log = nullptr;

bool find_vector_functions() {
  const auto find = [](const char* name) { return reinterpret_cast<VectorFunction>(dlsym(RTLD_DEFAULT, name)); };
  vector_exp = find(kVectorExp), vector_log = find(kVectorLog);
  return vector_exp != nullptr && vector_log != nullptr;
}

// The exponential of oneDNN, and with kFused Vectorized::exp_u20, which ATen has from there.
template <bool kFused>
Floats vector_exp_u20(Floats x) {
  const Floats lowest = broadcast(-0x1.5d58a0p+6F), one = broadcast(1.0F);
  const Floats log2e = broadcast(0x1.715476p+0F), half = broadcast(0.5F);
  const Floats clamped = greater(smaller(x, broadcast(0x1.62e430p+6F)), lowest);
  const Floats power = round_down(kFused ? multiply_add(clamped, log2e, half) : add(multiply(clamped, log2e), half));
  const Floats rest = subtract_product(power, broadcast(0x1.62e430p-1F), clamped);
  Floats sum = broadcast(0.00828929059F);
  constexpr float kFactors[] = {0.0418978221F, 0.166676521F, 0.499991506F, 0.999999701F, 1.0F};
#pragma GCC unroll 5
  for (const float factor : kFactors) sum = multiply_add(rest, sum, broadcast(factor));
  const Floats half_of_power = select(less(x, lowest), broadcast(0.0F), power_of_two(subtract(power, one)));
  return multiply(multiply(sum, half_of_power), broadcast(2.0F));
}

}  // namespace

}  // namespace duet
