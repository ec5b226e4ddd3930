#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>
#include "base/batch.h"
#include "io/file_io.h"

namespace duet {

// The safetensors format: 8 bytes little-endian header length, JSON header of at most 100 MB, data without
// holes. https://github.com/huggingface/safetensors
// Types: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL C64.

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

// A tensor as the header of a file lists it: `bytes` of the data from `begin` on.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0, bytes = 0;
};

// A file whose header is read and checked: every length and offset against the file, before memory is taken. Throws
// MalformedFile and IoError.
class SafetensorsFile {
 public:
  using BytesSeen = std::function<void(const void* data)>;

  explicit SafetensorsFile(const std::string& path);
  uint64_t size() const { return file_.size(); }
  const std::string& header() const { return header_; }  // all that stands before the data
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // In the order of their data.
  std::vector<const SafetensorsEntry*> in_place() const;
  // `seen` sees the bytes as they are in the file.
  at::Tensor read(const SafetensorsEntry& entry, const BytesSeen& seen = {}) const;

 private:
  file_io::FileReader file_;
  std::string header_;
  std::vector<SafetensorsEntry> entries_;
};

// All tensors of a file, in the order of its header. Throws DataError naming the file and what is wrong with it.
NamedTensors read_safetensors(const std::string& path);

// Writes one file under a temporary name beside `path`, syncs and renames it. Throws DataError; `path` is then as
// it was.
void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// The format's name for a type ("F32"), or nullptr if it has none.
const char* safetensors_dtype(at::ScalarType type);

}  // namespace duet
