#pragma once

#include <cstdint>
#include <string>
#include <ATen/core/Tensor.h>
#include "base/batch.h"
#include "base/state_dict.h"

namespace duet {

// What torch.export.save writes: a ZIP archive of a graph as JSON and of the bytes of its tensors. No code of it runs:
// what only Python's pickle could read is refused.
struct Pt2File {
  std::string program;     // an ExportedProgram of torch/_export/serde/schema.py
  NamedTensors weights;    // parameters and persistent buffers, on the CPU, sharing memory where the file's do
  NamedTensors constants;  // tensors that the graph names, and buffers that are not persistent
};

// Throws DataError naming the file, what is wrong and the way out.
Pt2File read_pt2(const std::string& path);

// The archive at `source` with other numbers: each of its tensors that `state` names takes the state's, of equal shape
// and dtype; all else is copied. Written under a temporary name beside `path`, synced and renamed. Throws DataError;
// `path` is then as it was.
void write_pt2(const std::string& path, const std::string& source, const StateDict& state);

// The type that a file calls by this number (schema.py's ScalarType). Throws MalformedFile for any other.
at::ScalarType pt2_dtype(int64_t number);

}  // namespace duet
