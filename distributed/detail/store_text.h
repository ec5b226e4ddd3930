#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace duet {

// Texts in a store of c10d's.
inline std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
inline std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

inline void set_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, bytes_of(text));
}

// Empty if there is none; does not wait.
inline std::string text_at(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? text_of(store.get(key)) : std::string();
}

// The text at `key`, which is `text` unless another rank was first.
inline std::string set_first(c10d::Store& store, const std::string& key, const std::string& text) {
  return text_of(store.compareSet(key, {}, bytes_of(text)));
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

// Between two looks into a store. Many ranks ask one: those who wait long ask seldom.
class PollInterval {
 public:
  void sleep() {
    std::this_thread::sleep_for(length_);
    length_ = std::min(length_ * 5 / 4, std::chrono::milliseconds(200));
  }

 private:
  std::chrono::milliseconds length_{10};
};

}  // namespace duet
