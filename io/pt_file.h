#pragma once

#include <string>
#include <vector>
#include "base/state_dict.h"

namespace duet {

// Python's files: what torch.save(state_dict, path) writes and torch.load(path, weights_only=True) takes. A ZIP archive
// of a pickle and the bytes of each storage. Types: float64, float32, float16, bfloat16, int64, int32, int16, int8,
// uint8, bool.

// All that such a file holds. Dictionaries and lists within one another become dotted names:
// "optimizer.state.0.exp_avg".
struct PtFile {
  StateDict state;                  // tensors on the CPU, sharing memory where the file's do
  std::vector<std::string> groups;  // keys of the top dictionary whose value is a dictionary: "state_dict", "meta"
  std::vector<std::string>
      passed_over;  // names of values that only Python can hold (NumPy scores, an mmengine history)
};

// Reads a file of PyTorch 1.6 or later. No code of it runs: classes and functions other than those of tensors end it.
// Every size is checked against the file before memory is taken, and the CRC of every byte that is used. Throws
// DataError naming the file, what is wrong and the way out.
PtFile read_pt(const std::string& path);

// Writes tensors and values as one flat dictionary, by name. Tensors that share all of their memory share it in the
// file. Written under a temporary name beside `path`, synced and renamed. Throws DataError; `path` is then as it was.
void write_pt(const std::string& path, const StateDict& state);

}  // namespace duet
