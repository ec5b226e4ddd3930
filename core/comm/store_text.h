#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace duet {

// Texts in a store of c10d's. Private to core/comm.
inline std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
inline std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

inline void set_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, bytes_of(text));
}

// Empty if there is none; does not wait.
inline std::string text_at(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? text_of(store.get(key)) : std::string();
}

}  // namespace duet
