#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include "base/state_dict.h"
#include "io/safetensors.h"

// Numbers that depend on the CPU (its kernels, its BLAS) are not stored: the Python torch in .venv computes them on
// this machine, in this environment, right before the tests (CTest fixtures), and they lie in the build folder.

namespace duet::testing {

// `name` below the references: in $DUET_REFERENCES, or where CTest has them written.
inline std::string reference_path(const std::string& name) {
  const char* folder = std::getenv("DUET_REFERENCES");
  return std::string(folder != nullptr ? folder : DUET_REFERENCES) + "/" + name;
}

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
