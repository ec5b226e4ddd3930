#pragma once

// The hyperbolic tangent of SLEEF (Sleef_tanhf8_u10, Sleef_tanhf16_u10) with its bits for each of the 2^32 floats, in
// less time: of two vectors at once, so that a CPU need not wait for each operation's result, and without the
// operations whose result is known here. A sum of a greater and a smaller number has its exact rest in two operations
// in the place of five. Over the vectors of *_simd.h, which is included before.

namespace duet {

namespace {

struct Vectors {
  Floats first, second;
};

#define DUET_OF_TWO(name, of_one)                                    \
  [[gnu::always_inline]] inline Vectors name(Vectors a, Vectors b) { \
    const auto apply = [](Floats a, Floats b) { return of_one; };    \
    return {apply(a.first, b.first), apply(a.second, b.second)};     \
  }
DUET_OF_TWO(operator+, a + b)
DUET_OF_TWO(operator-, a - b)
DUET_OF_TWO(operator*, a* b)
DUET_OF_TWO(operator/, a / b)
DUET_OF_TWO(turned, turned(a, b))
#undef DUET_OF_TWO

#define DUET_OF_THREE(name, of_one)                                                 \
  [[gnu::always_inline]] inline Vectors name(Vectors a, Vectors b, Vectors c) {     \
    const auto apply = [](Floats a, Floats b, Floats c) { return of_one; };         \
    return {apply(a.first, b.first, c.first), apply(a.second, b.second, c.second)}; \
  }
DUET_OF_THREE(sum_of_product, fused(a, b, c))    // a b + c
DUET_OF_THREE(rest_of_product, fused(a, b, -c))  // a b - c
DUET_OF_THREE(less_product, fused(-a, b, c))     // c - a b
#undef DUET_OF_THREE

inline Vectors vectors_of(float number) { return {broadcast(number), broadcast(number)}; }

// A sum of two, of which the second is what the first was rounded by.
struct Doubled {
  Vectors sum, rest;
};

[[gnu::always_inline]] inline Doubled add_smaller(Vectors a, Doubled b) {
  const Vectors sum = a + b.sum;
  return {sum, ((a - sum) + b.sum) + b.rest};
}

[[gnu::always_inline]] inline Doubled add_doubled(Doubled a, Doubled b) {
  const Vectors sum = a.sum + b.sum;
  return {sum, (((a.sum - sum) + b.sum) + a.rest) + b.rest};
}

[[gnu::always_inline]] inline Doubled multiply_doubled(Doubled a, Doubled b) {
  const Vectors product = a.sum * b.sum;
  const Vectors rest = rest_of_product(a.sum, b.sum, product);
  return {product, sum_of_product(a.sum, b.rest, sum_of_product(a.rest, b.sum, rest))};
}

// exp(x) for x from 0 to 8.7; anything beyond.
[[gnu::always_inline]] inline Doubled doubled_exp(Vectors x) {
  const Vectors power = x * vectors_of(0x1.715476p+0F);  // log2(e)
  const Vectors whole = {round_nearest(power.first), round_nearest(power.second)};
  const Vectors scale = {power_of_two(whole.first), power_of_two(whole.second)};
  const Vectors upper = x + whole * vectors_of(-0.693145751953125F);  // exact
  const Vectors lower = whole * vectors_of(-1.428606765330187045e-06F);
  const Vectors sum = upper + lower, part = sum - upper;
  const Doubled s = {sum, (upper - (sum - part)) + (lower - part)};

  Vectors factor = vectors_of(0.1980960224e-3F);
  constexpr float kFactors[] = {0.1394256484e-2F, 0.8333456703e-2F, 0.4166637361e-1F};
#pragma GCC unroll 3
  for (const float next : kFactors) factor = sum_of_product(factor, s.sum, vectors_of(next));
  const Vectors product = s.sum * factor;
  Doubled t = {product, sum_of_product(s.rest, factor, rest_of_product(s.sum, factor, product))};
  t = add_smaller(vectors_of(0.166666659414234244790680580464F), t);
  t = add_smaller(vectors_of(0.5F), multiply_doubled(s, t));
  const Vectors square = s.sum * s.sum;
  const Vectors rest = sum_of_product(s.sum + s.sum, s.rest, rest_of_product(s.sum, s.sum, square));
  const Doubled more = multiply_doubled({square, rest}, t);
  const Vectors all = s.sum + more.sum;
  t = add_smaller(vectors_of(1.0F), {all, ((s.sum - all) + more.sum) + (s.rest + more.rest)});
  return {t.sum * scale, t.rest * scale};
}

// With the sign of x, and 1 where there is no other result; a NaN where x is one.
[[gnu::always_inline]] inline Floats finished(Floats x, Floats magnitude, Floats y) {
  const Floats size = select(greater_or_nan(magnitude, broadcast(8.664339742F)), broadcast(1.0F), y);
  return or_nan(turned(size, signs_of(x)), x);
}

[[gnu::always_inline]] inline void tanh_of_pair(Floats (&pair)[2]) {
  const Vectors one = vectors_of(1.0F), minus = vectors_of(-0.0F);
  const Vectors magnitude = {turned(pair[0], signs_of(pair[0])), turned(pair[1], signs_of(pair[1]))};
  const Doubled up = doubled_exp(magnitude);
  const Vectors inverse = one / up.sum;
  const Vectors rest = inverse * less_product(up.rest, inverse, less_product(up.sum, inverse, one));
  const Doubled above = add_doubled(up, {turned(inverse, minus), turned(rest, minus)});
  const Doubled below = add_doubled(up, {inverse, rest});

  const Vectors share = one / below.sum, quotient = above.sum * share;
  const Vectors missing = less_product(below.rest, share, less_product(below.sum, share, one));
  const Vectors rounded = sum_of_product(above.rest, share, rest_of_product(share, above.sum, quotient));
  const Vectors y = quotient + sum_of_product(quotient, missing, rounded);
  pair[0] = finished(pair[0], magnitude.first, y.first);
  pair[1] = finished(pair[1], magnitude.second, y.second);
}

}  // namespace

}  // namespace duet
