#pragma once

#include <cstdint>

namespace duet {

// oneDNN's names: c[m][n] = a[m][k] b[k][n], where elements of a column, m, lie side by side.
struct OneDnnProduct {
  int64_t m = 0, n = 0, k = 0;
};

// How many columns each of its threads takes at most of a product without copies, with the present number of threads
// and AVX2. That it may cut k as well is left out.
int64_t onednn_columns_of_thread(const OneDnnProduct& product);

}  // namespace duet
