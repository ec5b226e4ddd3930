#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include "base/batch.h"

namespace duet {

// Same shape, dtype and bits: NaN equals a NaN of the same bits, -0 does not equal 0. Waits for the device.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

// XXH3-128 of the values in row-major order, 32 hex digits. Waits for the device.
std::string bits_hash(const at::Tensor& values);

// Names of the tensors, in the order of the lists, whose name or bits differ or that only one list has.
std::vector<std::string> differences(const NamedTensors& a, const NamedTensors& b);

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

// Two digits for each byte.
std::string hex_of(std::string_view bytes);

}  // namespace duet
