#pragma once

#include <vector>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace duet {

// Whether anybody drew from the CPU's default generator, or from others that a step uses, while no random op ran.
class GeneratorWatch {
 public:
  // `own`: of the step, besides the default one.
  explicit GeneratorWatch(std::vector<at::Generator> own);

  void note();
  bool moved() const;
  // To what was noted.
  void restore();

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

}  // namespace duet
