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

// The texts at several keys, in two or three messages whatever their number; empty where there is none. Does not wait.
inline std::vector<std::string> texts_at(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  if (store.check(keys)) {
    for (const auto& bytes : store.multiGet(keys)) texts.push_back(text_of(bytes));
  } else {
    for (const std::string& key : keys) texts.push_back(text_at(store, key));
  }
  return texts;
}

}  // namespace duet
