#pragma once

// Sums and products of two numbers in files that are compiled for AVX. Of two NaN the first one is the result; `+` and
// `*` leave that to the compiler, and clang's assembler swaps operands for a shorter code than that of {vex3}.

namespace duet {

namespace {

inline float add(float first, float second) {
  float sum;
  asm("%{vex3%} vaddss %2, %1, %0" : "=x"(sum) : "x"(first), "x"(second));
  return sum;
}

inline double add(double first, double second) {
  double sum;
  asm("%{vex3%} vaddsd %2, %1, %0" : "=x"(sum) : "x"(first), "x"(second));
  return sum;
}

inline float multiply(float first, float second) {
  float product;
  asm("%{vex3%} vmulss %2, %1, %0" : "=x"(product) : "x"(first), "x"(second));
  return product;
}

// a * b + c; of several NaN that of a, then that of c.
inline float multiply_add(float a, float b, float c) {
  asm("vfmadd132ss %2, %1, %0" : "+x"(a) : "x"(c), "x"(b));
  return a;
}

inline double multiply(double first, double second) {
  double product;
  asm("%{vex3%} vmulsd %2, %1, %0" : "=x"(product) : "x"(first), "x"(second));
  return product;
}

}  // namespace

}  // namespace duet
