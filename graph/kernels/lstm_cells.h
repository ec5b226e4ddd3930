#pragma once

#include "graph/kernels/vector_functions.h"

// What an LSTM does to each element by itself, as oneDNN's kernels do for any width of vectors
// (jit_uni_lstm_cell_postgemm): the sigmoid by its exponential, the hyperbolic tangent by 32 polynomials of degree 6. A
// NaN gives a number. Over the vectors of avx2_simd.h, which is included before.

namespace duet {

namespace {

inline Floats bits(int pattern) { return _mm256_castsi256_ps(broadcast_int(pattern)); }

inline Floats lstm_sigmoid(Floats x) {
  const Floats one = broadcast(1.0F), power = vector_exp_u20<false>(_mm256_or_ps(x, broadcast(-0.0F)));
  const Floats low = divide(power, add(power, one));
  return _mm256_blendv_ps(subtract(one, low), low, x);
}

// For every half binade from 2^-12 on, those of each power from 0 on.
alignas(32) constexpr unsigned kTanhCoefficients[32][kLanes] = {
    {0x00000000, 0x3f800000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0},
    {0x39bfffff, 0x3f800018, 0xbe4e0ff1, 0x45b3ae96, 0xcc981a1b, 0x52f688d5, 0xd8995ed1, 0},
    {0x39ffffff, 0x3f7fffe8, 0x3d25b1b1, 0xc414eb20, 0x4a7edd3d, 0xd0505c72, 0x558285ea, 0},
    {0x3a3ffffe, 0x3f7fffda, 0x3d6b6dab, 0xc450e02e, 0x4ab1007c, 0xd08f98e3, 0x55b2cd69, 0},
    {0x3a7ffffb, 0x3f7fffdc, 0x3c9fb1d5, 0xc3152b4e, 0x48fedd9c, 0xce505cc9, 0x53028625, 0},
    {0x3abffff7, 0x3f7fffdc, 0xbabff06f, 0xbead2f56, 0x41a557b5, 0xc7162b8a, 0x4bc9991f, 0},
    {0x3affffeb, 0x3f7fffac, 0x3c07b3f6, 0xc2162e02, 0x477ee32a, 0xcc5061d6, 0x5082898a, 0},
    {0x3b3fffdc, 0x3f7fff70, 0xbb3fc1bc, 0xbeb4bd5a, 0x422557f5, 0xc7162bdf, 0x4b4999b3, 0},
    {0x3b7fffab, 0x3f7ffeec, 0x3a9f5921, 0xc11a59a4, 0x45ff3ce4, 0xca50b37f, 0x4e02c07c, 0},
    {0x3bbfff70, 0x3f7ffdc0, 0xbbbf06f2, 0xbed2f507, 0x42a55641, 0xc7162a3a, 0x4ac99764, 0},
    {0x3bfffeab, 0x3f7ffbed, 0xbbb0f402, 0xc020d32c, 0x446e0867, 0xc8422086, 0x4b72c822, 0},
    {0x3c3ffdc0, 0x3f7ff704, 0xbc47db9e, 0x3dd0f506, 0xc33dc19a, 0x471a714e, 0xca40c0e1, 0},
    {0x3c7ffaab, 0x3f7feff5, 0xbc73d5e7, 0xbf2a75e2, 0x42915214, 0xc5ece1f1, 0x489413e4, 0},
    {0x3cbff701, 0x3f7fdbca, 0xbca25bda, 0xbff950e3, 0x43af4fad, 0xc70e3d90, 0x49b12224, 0},
    {0x3cffeaad, 0x3f7fbfff, 0xbcfca780, 0xbed47334, 0x4110fe88, 0xc3eba94a, 0x46134c4e, 0},
    {0x3d3fdc08, 0x3f7f7041, 0xbd40e07c, 0xbe809b8c, 0xc1099b75, 0x43e0c424, 0xc60c2d57, 0},
    {0x3d7faacd, 0x3f7f009b, 0xbd7dab03, 0xbeb64532, 0x3fc8a8dc, 0xc21f4552, 0x43c83910, 0},
    {0x3dbf7081, 0x3f7dc36c, 0xbdbe4a0f, 0xbe961a5b, 0xbfbeaef5, 0x42217cc8, 0xc3c872d1, 0},
    {0x3dfeacc9, 0x3f7c0aa8, 0xbdfb14a5, 0xbe9b63ac, 0xbe365aad, 0x405e7dc4, 0xc186bc9e, 0},
    {0x3e3dc7fd, 0x3f7734b8, 0xbe36cc8d, 0xbea0d4b2, 0x3f4d9652, 0xc10dd401, 0x42325bc3, 0},
    {0x3e7acbf5, 0x3f70a4de, 0xbe6bd102, 0xbe828a77, 0x3ddfa08f, 0x3e96b602, 0xbf2ffa4a, 0},
    {0x3eb77a9f, 0x3f5f1fd8, 0xbe9fe7c5, 0xbe378612, 0x3e34e9b8, 0xbd1a6d2f, 0x3d9a203c, 0},
    {0x3eec9a9f, 0x3f495493, 0xbeba0f10, 0xbdc20908, 0x3e2d07a6, 0xbd393883, 0xbc545a43, 0},
    {0x3f22991f, 0x3f18b9ec, 0xbec206a8, 0x3d2d3957, 0x3dc63567, 0xbd674682, 0xbae08fee, 0},
    {0x3f42f7d6, 0x3ed706cb, 0xbea3c388, 0x3dd46e89, 0x3cdaeb78, 0xbd310016, 0x3c80225d, 0},
    {0x3f67b7cc, 0x3e390b06, 0xbe277d62, 0x3db3f629, 0xbcd17537, 0xb961e269, 0x3b1fd1df, 0},
    {0x3f76ca83, 0x3d90b11f, 0xbd8b7960, 0x3d2c5e7b, 0xbc92829c, 0x3ba32495, 0xba36b9d1, 0},
    {0x3f7ebbe9, 0x3c21a053, 0xbc209f49, 0x3bd20403, 0xbb43ab99, 0x3a7680d5, 0xb91de544, 0},
    {0x3f7fd40c, 0x3aaf7fdb, 0xbaad44ca, 0x3a59dfae, 0xb9b471dd, 0x38b3173c, 0xb71f100f, 0},
    {0x3f7fff32, 0x37ccc1a3, 0xb7c6eeac, 0x3770af45, 0xb6baad5a, 0x35a9deea, 0xb408e2ed, 0},
    {0x3f7ffffc, 0x355c6733, 0xb663aa41, 0x372cc014, 0xb78bafc7, 0x375c3f2a, 0xb685fec8, 0},
    {0x3f800000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0},
};

inline Floats lstm_tanh(Floats x) {
  const Ints first = broadcast_int(0x39800000), leading = broadcast_int(static_cast<int>(0xFFC00000));
  const Floats size = turned(x, signs_of(x));
  const Ints size_bits = _mm256_castps_si256(size);
  const Ints interval = _mm256_srli_epi32(_mm256_and_si256(_mm256_sub_epi32(size_bits, first), leading), 22);
  const Floats rest = subtract(size, _mm256_castsi256_ps(_mm256_and_si256(size_bits, leading)));
  alignas(32) unsigned intervals[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(intervals), interval);
  Floats coefficients[kLanes];  // beyond the table: any, since the result is another there
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; ++i) {
    coefficients[i] = load(reinterpret_cast<const float*>(kTanhCoefficients[intervals[i] % 32]));
  }
  transpose(coefficients);
  Floats value = coefficients[6];
#pragma GCC unroll 6
  for (int i = 5; i >= 0; --i) value = fused(value, rest, coefficients[i]);
  value = select(less(size, bits(0x41102CB3)), value, broadcast(1.0F));
  value = select(less(size, bits(0x39DDB3D7)), size, value);
  return turned(value, signs_of(x));
}

// A row of a step: of `hidden` elements each, and gates input, forget, cell, output one after the other.
struct LstmRow {
  int64_t hidden;
  float* gates;        // forward: sums of products become gates; backward: these become the gradients of the sums
  const float* cells;  // of the step before
  float* new_cells;
  float* tanh_cells;
};

// out = output * tanh(c), c = forget * cells + input * cell
inline void lstm_forward_row(const LstmRow& row, const float* bias, float* out, NanWatch& nan) {
  for (int64_t j = 0; j < row.hidden; j += kLanes) {
    Floats gates[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      float* const at = row.gates + i * row.hidden + j;
      const Floats sum = add(load(at), load(bias + i * row.hidden + j));
      nan.see(sum);
      gates[i] = i == 2 ? lstm_tanh(sum) : lstm_sigmoid(sum);
      store(at, gates[i]);
    }
    const Floats cells = fused(gates[0], gates[2], multiply(load(row.cells + j), gates[1]));
    nan.see(cells);
    const Floats tanh_cells = lstm_tanh(cells);
    store(row.new_cells + j, cells);
    store(row.tanh_cells + j, tanh_cells);
    store(out + j, multiply(tanh_cells, gates[3]));
  }
}

// Of the loss, by the row's output and cells.
struct LstmRowGradients {
  const float* of_out;     // by what came after the layer; null: zeros
  const float* of_hidden;  // by the next step
  float* of_cells;         // becomes that by the cells before
};

inline Floats one_less_square(Floats one, Floats x) { return subtract_product(x, x, one); }

inline void lstm_backward_row(const LstmRow& row, const LstmRowGradients& grad, NanWatch& nan) {
  const Floats one = broadcast(1.0F);
  for (int64_t j = 0; j < row.hidden; j += kLanes) {
    const auto gate = [&](int i) { return load(row.gates + i * row.hidden + j); };
    const Floats in = gate(0), forget = gate(1), cell = gate(2), out = gate(3);
    const Floats tanh_cells = load(row.tanh_cells + j);
    const Floats of_out = grad.of_out != nullptr ? load(grad.of_out + j) : broadcast(0.0F);
    const Floats by_hidden = add(of_out, load(grad.of_hidden + j));
    const Floats through_tanh = multiply(multiply(one_less_square(one, tanh_cells), by_hidden), out);
    const Floats by_cells = add(load(grad.of_cells + j), through_tanh);
    const Floats by_gates[] = {
        multiply(multiply(one_less_square(in, in), by_cells), cell),
        multiply(multiply(one_less_square(forget, forget), by_cells), load(row.cells + j)),
        multiply(one_less_square(one, cell), multiply(in, by_cells)),
        multiply(multiply(one_less_square(out, out), by_hidden), tanh_cells),
    };
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      nan.see(by_gates[i]);
      store(row.gates + i * row.hidden + j, by_gates[i]);
    }
    const Floats before = multiply(by_cells, forget);
    nan.see(before);
    store(grad.of_cells + j, before);
  }
}

}  // namespace

}  // namespace duet
