#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

// One op of a program: which, of which values, and the seed of its numbers.
struct Node {
  std::size_t kind;
  std::vector<std::size_t> takes;
  uint32_t seed;
};

// How the program is trained.
struct Settings {
  int64_t rows = 8;
  int64_t steps = 8;
  int64_t accumulate = 1;
  int optimizer = 0;
  int clipping = 0;         // none, by norm, by value
  int amp = 0;              // none, bfloat16, float16
  int layout = 0;           // of the batch: contiguous, columns first, expanded, part of something larger, of the ring
  int observers = 0;        // none, gradients changed in a hook, an average of the weights in the step
  bool other_rows = false;  // some batches have another size
  bool guarded = true;      // false: without comparisons, so that nothing but the replay is tested
};

// A random training step. Values 0 to 3 are there in all of them: a linear layer of the batch (m), the batch itself
// (m), further numbers of the batch (m), its classes (k). Value 4 + n is that of op n.
struct Program {
  static constexpr std::size_t kGiven = 4;

  uint64_t seed = 0;
  Settings settings;
  std::vector<Node> nodes;

  char type(std::size_t value) const;
  bool changes_host_code() const;
};

Program random_program(uint64_t seed);
// One op and what it takes.
Program program_of(std::size_t kind, uint64_t seed);
std::string text_of(const Program& program);
// Without op `index`; what it gave is taken from elsewhere. False if there is nothing of its type.
bool without(const Program& program, std::size_t index, Program& smaller);

}  // namespace duet::testing::fuzz
