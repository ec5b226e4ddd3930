#pragma once

// Sums and products of two numbers in files that are compiled for AVX. Of two NaN the first one is the result; `+` and
// `*` leave that to the compiler.

namespace duet {

namespace {

inline float add(float first, float second) {
  float sum;
  asm("vaddss %2, %1, %0" : "=x"(sum) : "x"(first), "x"(second));
  return sum;
}

inline double add(double first, double second) {
  double sum;
  asm("vaddsd %2, %1, %0" : "=x"(sum) : "x"(first), "x"(second));
  return sum;
}

inline double multiply(double first, double second) {
  double product;
  asm("vmulsd %2, %1, %0" : "=x"(product) : "x"(first), "x"(second));
  return product;
}

}  // namespace

}  // namespace duet
