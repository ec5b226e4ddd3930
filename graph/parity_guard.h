#pragma once

#include <duet/core/update_rule.h>
#include <duet/graph/captured_step.h>

#include <string>

namespace duet {

// Runs one update both ways from one snapshot: replayed, then eager, and compares weights, buffers, optimizer state, loss and
// random state bit by bit. The eager result stays in place either way.
struct ParityResult {
  UpdateOutput output;      // of the eager run
  std::string difference;   // name of the first tensor that differs; empty if none does
};
ParityResult run_both_ways(CapturedStep& step, UpdateRule& rule, const Window& window, UpdatePoints& points);

}  // namespace duet
