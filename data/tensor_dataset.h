#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "dataset.h"

namespace duet {

// Samples that lie in memory: row i of every tensor is sample i.
// Yields each tensor's rows under its name, [N, ...], dtype unchanged.
class TensorDataset : public Dataset {
 public:
  // Tensors of any dtype and device, kept on the CPU without gradient. Throws DataError naming the tensor unless there
  // is at least one, names differ, and all have the same number of rows, which is not 0.
  explicit TensorDataset(const NamedTensors& tensors);

  // The tensors of a safetensors file. Throws DataError naming the file.
  static TensorDataset from_file(const std::string& path);

  int64_t size() const override { return tensors_.front().second.size(0); }
  Batch get(const std::vector<int64_t>& indices) const override;

 private:
  NamedTensors tensors_;
};

}  // namespace duet
