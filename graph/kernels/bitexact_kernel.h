#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace duet {

// A faster way to do what one instruction of a CpuProgram does, with the bits that ATen's kernel gives.
class BitexactKernel {
 public:
  virtual ~BitexactKernel() = default;
  virtual void run() = 0;
  virtual std::string name() const = 0;  // for CpuProgram::text
};

// What a pass sees of an instruction: the op that runs and the arguments that it gets every time. The memory of the
// tensors may differ from run to run.
struct OpCall {
  c10::OperatorHandle op;
  const std::vector<c10::IValue>& arguments;
  std::size_t segment;  // host code runs between two segments

  bool is(const char* name, const char* overload) const {
    return op.operator_name().name == name && op.operator_name().overload_name == overload;
  }
  // The argument as a dense float tensor on the CPU; undefined if it is anything else.
  at::Tensor floats(std::size_t argument) const;
  // Whether it may change elements of `tensor`'s storage.
  bool writes(const at::Tensor& tensor) const;
};

// One kernel per call; null where ATen's own is to run.
struct BitexactKernels {
  std::vector<std::unique_ptr<BitexactKernel>> of_call;
  int64_t bytes = 0;  // memory that they own
};

// Runs every pass below.
BitexactKernels find_bitexact_kernels(const std::vector<OpCall>& calls);

// mm and addmm (with the bias that follows), for shapes in which duet's kernel gives the bits of this LibTorch's BLAS
// and is faster: both are tried once per shape.
void find_bitexact_gemms(const std::vector<OpCall>& calls, BitexactKernels& kernels);

// gelu(tanh) and its backward: the tanh of the first is kept for the second.
void find_bitexact_gelus(const std::vector<OpCall>& calls, BitexactKernels& kernels);

// The work is part of an earlier instruction's kernel.
class DoneBefore : public BitexactKernel {
 public:
  void run() override {}
  std::string name() const override { return "done above"; }
};

}  // namespace duet
