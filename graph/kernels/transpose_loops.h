#pragma once

#include <cstdint>

// Transposing, over the vectors of avx2_simd.h or avx512_simd.h, which is included before.

namespace duet {

namespace {

struct Matrix {
  const float* data;
  int64_t row;  // floats from one row to the next
  int64_t rows, columns;
};

// At most kLanes rows and columns: those of a pixel's channels from planes, or planes from such vectors.
inline void transpose_some(const Matrix& from, float* to, int64_t to_row) {
  if (from.rows < kLanes || from.columns < kLanes) {
    for (int64_t i = 0; i < from.rows; ++i) {
      for (int64_t j = 0; j < from.columns; ++j) to[j * to_row + i] = from.data[i * from.row + j];
    }
    return;
  }
  Floats rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = load(from.data + i * from.row);
  transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(to + i * to_row, rows[i]);
}

}  // namespace

}  // namespace duet
