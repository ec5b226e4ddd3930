#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "../base/options.h"

namespace duet {

// What GraphTrainer does with a step that cannot be captured.
enum class Fallback {
  kAuto,    // runs it eager, says once why, counts it
  kStrict,  // throws GraphError with the reason
  kEager,   // never captures: every step runs eager
};

// Kernels of duet's own in place of LibTorch's.
enum class Fuse {
  kOff,
  kExact,  // where they give the same bits, which is tried before, and take less time (CPU)
};

struct GraphOptions {
  Fallback fallback = Fallback::kAuto;
  Fuse fuse = Fuse::kExact;
  int64_t cache_bytes = int64_t{2} << 30;  // memory of all captured steps; the least recently used goes first
  // The parity guard: after 1, 2, 4, ... replays, and then every `verify_interval` ones, a step runs both ways from
  // one snapshot and is compared bit by bit. 0: never.
  int64_t verify_interval = 1024;

  static const OptionFields& fields();
};

// What became of one signature of the step.
struct SignatureReport {
  std::string signature;  // readable: names, dtypes and shapes of the micro-batches
  std::string state;      // "seen", "captured" or "eager"
  std::string reason;     // why it is eager: op, place in the model, way out
  int64_t eager_steps = 0;
  int64_t replays = 0;
  int64_t bytes = 0;  // memory that the captured step owns
};

}  // namespace duet
