#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include "tests/support/sample_state.h"

namespace duet {

// A file that make_pt_files.py wrote with Python: beside the sources, or where DUET_TESTS says that a copy of tests/
// is.
inline std::string python_file(const std::string& name) {
  const char* copy = std::getenv("DUET_TESTS");
  const auto tests =
      copy != nullptr ? std::filesystem::path(copy) : std::filesystem::path(__FILE__).parent_path() / "..";
  return (tests / "io/pt_files" / name).string();
}

// Everything that a .pt file can hold: texts are UTF-8 there.
inline StateDict writable_state() {
  StateDict state;
  const StateDict odd = odd_state();
  for (const auto& [name, tensor] : odd.tensors()) state.set(name, tensor);
  for (const auto& [name, value] : odd.values()) {
    if (name != "text.bytes") state.set(name, value);
  }
  return state;
}

}  // namespace duet
