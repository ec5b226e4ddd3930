#pragma once

#include <duet/core/batch.h>

#include <cstdint>
#include <map>
#include <string>

namespace duet {

// The safetensors format: 8 bytes little-endian header length, JSON header of at most 100 MB, data without
// holes. https://github.com/huggingface/safetensors

// Header and contiguous data of `tensors` (any device; copied to the CPU), tensors in the given order.
struct SafetensorsImage {
  std::string header;                // with its length prefix, padded to 8 bytes
  std::vector<at::Tensor> payload;   // contiguous CPU tensors in file order
  uint64_t bytes = 0;                // of the whole file
};
SafetensorsImage encode_safetensors(const NamedTensors& tensors,
                                    const std::map<std::string, std::string>& metadata = {});

// Reads a whole file. Throws DataError naming the file and what is wrong with it: every length and offset is
// checked against the file before memory is taken.
NamedTensors read_safetensors(const std::string& path);

// Plain write of one file (no temporary name; see CheckpointStore for that). Throws DataError.
void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace duet
