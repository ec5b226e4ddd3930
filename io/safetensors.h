#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>
#include "base/batch.h"

namespace duet {

// The safetensors format: 8 bytes little-endian header length, JSON header of at most 100 MB, data without
// holes. https://github.com/huggingface/safetensors
// Types: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL.

// A safetensors file in memory: header first, then the bytes of each tensor of `payload` one after the other.
// The header names the tensors in the order they were given. Their bytes lie by falling size of the element:
// that keeps each aligned, which Python readers demand.
struct SafetensorsImage {
  std::string header;  // with its length prefix, padded to 8 bytes
  NamedTensors
      payload;         // the given ones in file order; whoever writes them takes plain_tensor() of one after the other
  uint64_t bytes = 0;  // of the whole file
};

// Tensors on any device, with any strides. Throws DataError naming the tensor that the format cannot hold.
SafetensorsImage encode_safetensors(const NamedTensors& tensors,
                                    const std::map<std::string, std::string>& metadata = {});

// Sees the bytes of a file as they are read, from its first to its last: the header's with an empty name, then those of
// each tensor.
using BytesSeen = std::function<void(const std::string& tensor, const void* data, uint64_t bytes)>;

// Reads a whole file, once; tensors in the order of its header. Throws DataError naming the file and what is wrong with
// it: every length and offset is checked against the file before memory is taken.
NamedTensors read_safetensors(const std::string& path, const BytesSeen& seen = {});

// A tensor as the header of a file lists it; its bytes are those from `begin` to before `end` of the file.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

// Reads the header alone; throws as read_safetensors() does.
std::vector<SafetensorsEntry> read_safetensors_header(const std::string& path);

// Writes one file under a temporary name beside `path`, syncs and renames it. Throws DataError; `path` is then as
// it was.
void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// The format's name for a type ("F32"), or nullptr if it has none.
const char* safetensors_dtype(at::ScalarType type);

}  // namespace duet
