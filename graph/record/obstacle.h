#pragma once

#include <functional>
#include <optional>
#include <string>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace duet {

// Why a call cannot be part of a recording.
struct Obstacle {
  std::string what, way_out;
};

// Hears of everything that cannot be recorded. `op`: the one that was about to run; empty if it is no op's. `where`:
// the place in the model.
using ObstacleListener = std::function<void(const std::string& op, const Obstacle& obstacle, const std::string& where)>;

// Whether it reads a value of a tensor back to the host and does nothing else: item(), bool(tensor), at::equal().
bool is_host_read(const c10::OperatorHandle& op);

Obstacle host_read_obstacle(const std::string& op);

// The tensor without elements that the op lays over the memory of another one; undefined: it does something else. That
// makes a view by other means: cuDNN's RNNs see all of their weights as one tensor so.
at::Tensor laid_over_memory(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

std::optional<Obstacle> find_obstacle(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace duet
