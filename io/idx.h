#pragma once

#include <string>
#include <ATen/core/Tensor.h>

namespace duet {

// Reads an IDX file, plain or gzip, the format of MNIST and its kin: 2 zero bytes, a type byte, the number of
// dimensions, the big-endian 32-bit dimensions, the big-endian values.
// Returns a CPU tensor of the file's shape: uint8 (type 0x08), int8 (0x09), int16 (0x0B), int32 (0x0C),
// float32 (0x0D) or float64 (0x0E). If `path` does not exist, its twin with (without) ".gz" is taken.
// Throws DataError naming the file if it is missing, damaged, too short or too long. Takes no more memory than the
// file's bytes fill.
at::Tensor read_idx(const std::string& path);

}  // namespace duet
