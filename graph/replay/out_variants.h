#pragma once

#include <optional>
#include <ATen/core/dispatch/Dispatcher.h>

namespace duet {

// The overload of `op` that writes into given tensors, if the backend has a kernel of its own for it: the same
// arguments, then one output per result. Generated overloads, which compute and copy, do not count.
std::optional<c10::OperatorHandle> find_out_variant(const c10::OperatorHandle& op, c10::DispatchKey backend);

}  // namespace duet
