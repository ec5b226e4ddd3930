#pragma once

#include <cstddef>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

namespace duet {

// Calls visit(tensor) for each tensor that an argument or result is or lists, undefined ones left out.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
    }
  }
}

// Likewise for the last `count` values of the stack.
template <class Visit>
void for_each_tensor(const torch::jit::Stack& stack, std::size_t count, Visit visit) {
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) for_each_tensor(stack[i], visit);
}

}  // namespace duet
