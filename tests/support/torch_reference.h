#pragma once

#include "base/state_dict.h"
#include "io/safetensors.h"

#include <filesystem>
#include <string>

// Numbers that depend on the CPU (its kernels, its BLAS) are not stored: the Python torch in .venv computes them on this
// machine, in this environment, right before the tests (CTest fixtures), and they lie in the build folder.

namespace duet::testing {

// The references in `path`; none where no script has written them.
inline StateDict torch_reference(const std::string& path) {
  StateDict found;
  if (!std::filesystem::exists(path)) return found;
  for (const auto& [name, tensor] : read_safetensors(path)) found.set(name, tensor);
  return found;
}

inline std::string no_reference(const std::string& path, const std::string& script) {
  return "there is no '" + path + "': it takes a Python that has torch; then ctest runs " + script + " to write it";
}

}  // namespace duet::testing
