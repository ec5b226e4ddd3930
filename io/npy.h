#pragma once

#include <string>
#include <ATen/core/Tensor.h>

namespace duet {

// The array of a file of numpy.save as a CPU tensor of its dtype and shape: bool, uint8, int8 to int64, float16 to
// float64, little-endian, in C or Fortran order. Throws DataError naming the file if it is missing, damaged, shorter or
// longer than its header says, or holds another dtype. Takes no more memory than the file has bytes.
at::Tensor read_npy(const std::string& path);

}  // namespace duet
