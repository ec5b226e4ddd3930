#pragma once

#include <exception>
#include <string_view>

namespace duet {

// Thrown through host code that is not to go on. Python and TorchScript make an exception of their own out of it, which
// has its text.
struct StepStopped : std::exception {
  const char* what() const noexcept override { return "the host code of this step is not to go on"; }
};

inline bool is_step_stopped(const std::exception& error) {
  return std::string_view(error.what()).find(StepStopped().what()) != std::string_view::npos;
}

}  // namespace duet
