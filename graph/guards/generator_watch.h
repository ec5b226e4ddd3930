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

  // Of a new step. `captured` by a device: its generators cannot be looked at meanwhile.
  void start(bool captured = false);
  // What has been drawn up to here was drawn by random ops, or by hooks.
  void note();
  bool moved() const;
  // A random op is left out. The generators move nevertheless: else nobody would see who puts back the state that they
  // had before it.
  void skip_op();
  // To the start, if ops were left out.
  void undo_skips();
  // To the start.
  void restore();

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> at_start_, states_;  // undefined: not looked at
  bool captured_ = false;
  bool skipped_ = false, moved_before_skip_ = false;
};

}  // namespace duet
