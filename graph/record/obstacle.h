#pragma once

#include <optional>
#include <string>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace duet {

// Why a call cannot be part of a recording.
struct Obstacle {
  std::string what, way_out;
};
std::optional<Obstacle> find_obstacle(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace duet
