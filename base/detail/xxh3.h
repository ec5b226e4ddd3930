#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace duet {

// XXH3-128 of bytes that arrive in pieces. hex() prints it as the tool xxh128sum does.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();

  void update(const void* data, size_t bytes);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string xxh3_hex(const void* data, size_t bytes);

}  // namespace duet
