#pragma once

// Sums and products in files that are compiled for AVX. Of two NaN the first one is the result, of a multiply-add's
// three that of a, then that of c; `+` and `*` leave that to the compiler, and clang's assembler swaps operands for a
// shorter code than that of {vex3}. Always inlined: GCC keeps sums in memory around assembly that it inlines later.

// `place`: of registers, "x" or "v" (with those of AVX-512).
#define DUET_ORDERED(Number, name, instruction, place)                                \
  [[gnu::always_inline]] inline Number name(Number first, Number second) {            \
    Number result;                                                                    \
    asm(instruction " %2, %1, %0" : "=" place(result) : place(first), place(second)); \
    return result;                                                                    \
  }

// a * b + c, or c - a * b.
#define DUET_ORDERED_FUSED(Number, name, instruction, place)                \
  [[gnu::always_inline]] inline Number name(Number a, Number b, Number c) { \
    asm(instruction " %2, %1, %0" : "+" place(a) : place(c), place(b));     \
    return a;                                                               \
  }

namespace duet {

namespace {

DUET_ORDERED(float, add, "%{vex3%} vaddss", "x")
DUET_ORDERED(double, add, "%{vex3%} vaddsd", "x")
DUET_ORDERED(float, multiply, "%{vex3%} vmulss", "x")
DUET_ORDERED(double, multiply, "%{vex3%} vmulsd", "x")
DUET_ORDERED_FUSED(float, multiply_add, "vfmadd132ss", "x")

}  // namespace

}  // namespace duet
