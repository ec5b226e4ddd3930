#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "../base/options.h"
#include "../checkpoint/checkpoint.h"

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

// Whose host code is run and compared with the recording before a step is replayed.
enum class Check {
  kEvery,   // every step's: nothing that the code does differently can be missed
  kBudget,  // every step's where that costs at most check_budget of the replay; otherwise that of the first 1 024
            // replays, of the first 64 of each signature, and then of random ones, whose cost stays within check_budget
  kOff,     // of those alone that need it
};

struct GraphOptions {
  Fallback fallback = Fallback::kAuto;
  Fuse fuse = Fuse::kExact;
  // Replays of a captured step before kernels are tried for it that this process has not tried on such tensors, which
  // takes as long as tens of steps (CPU).
  int64_t fuse_after = 64;
  int64_t cache_bytes = int64_t{2} << 30;  // memory of all captured steps; the least recently used goes first
  Check check = Check::kBudget;
  double check_budget = 0.03;  // share of the replays' time
  // The parity guard: after 1, 2, 4, ... replays, and then at random, every `verify_interval` on average, a step runs
  // both ways from one snapshot and is compared bit by bit. 0: never.
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
  int64_t checked = 0;             // of the replays: those before which the host code was run and found the same
  int64_t unchecked = 0;           // of the replays: those whose host code did not run, whatever was found later
  int64_t unchecked_in_a_row = 0;  // the most of them between two runs of the host code
  double check_seconds = 0;        // that these checks, and comparisons with an eager run, took beside the replays
  int64_t differing = 0;  // steps whose host code did something else than recorded; they ran op by op from there on
  int64_t nondeterministic = 0;  // comparisons in which a replay differed from eager only where eager does from itself
  int64_t bytes = 0;             // memory that the captured step owns
  std::string kind = "step";     // or "validation", "prediction": the forward pass of one batch
};

}  // namespace duet
