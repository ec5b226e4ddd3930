#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>
#include <caffe2/serialize/inline_container.h>
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

// An archive of these entries in the folder that it is called like: "data.pkl" in a.pt becomes "a/data.pkl". What every
// archive of PyTorch's has beside them is added.
inline void write_pt_archive(const std::string& path, const std::vector<std::pair<std::string, std::string>>& entries,
                             bool packed = false) {
  caffe2::serialize::PyTorchStreamWriter archive(path);
  for (const auto& [name, bytes] : entries) archive.writeRecord(name, bytes.data(), bytes.size(), packed);
  archive.writeEndOfFile();
}

// The opcodes of a pickled text.
inline std::string pickled(const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  return "X" + std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
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
