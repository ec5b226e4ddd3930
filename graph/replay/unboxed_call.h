#pragma once

#include <vector>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace duet {

// Calls an op that writes into its arguments, on the CPU, without a stack that its arguments are copied to.
using UnboxedCall = void (*)(const std::vector<c10::IValue>& arguments);

// Of ops that steps of common models call where no kernel of duet's own takes their place; null for others.
UnboxedCall unboxed_call(const c10::OperatorHandle& op);

}  // namespace duet
