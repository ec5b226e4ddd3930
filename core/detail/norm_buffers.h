#pragma once

#include <vector>
#include <ATen/core/Tensor.h>

namespace duet {

class Task;

// The running averages of a model's norms in a step that may be skipped: those of a batch norm that sees one NaN are
// NaN for good.
class NormBuffers {
 public:
  NormBuffers() = default;
  explicit NormBuffers(const Task& task);

  // Before the forward pass.
  void keep();
  // Where that loss is not finite they become what they were. Lets the copies go: a step of which somebody keeps
  // tensors has no replay without its host code.
  void put_back_unless_finite(const at::Tensor& loss);

 private:
  std::vector<at::Tensor> buffers_, before_;
};

}  // namespace duet
