#pragma once

#include <string>
#include <vector>
#include "graph/graph_options.h"
#include "tests/graph/fuzz/program.h"

namespace duet::testing::fuzz {

enum class Verdict {
  kSame,        // the same bits
  kRefused,     // host code changed, and graph mode ended the run with an error that says so
  kInvalid,     // eager mode does not run it either
  kUnsteady,    // eager mode gives other bits when it runs twice
  kRanTwice,    // host code read memory by its address: the step began again, as the report says, and its memory shows
                // that
  kFalseAlarm,  // graph mode took something for a change or a wrong replay where there is none
  kError,       // graph mode threw something else, or where nothing changed
  kDiffers,
};

const char* name_of(Verdict verdict);
inline bool is_failure(Verdict verdict) { return verdict >= Verdict::kFalseAlarm; }

struct Parity {
  Verdict verdict;
  std::string what;  // the first tensor that differs, or the error
  std::vector<SignatureReport> report;
};

// Trains the program in both modes.
Parity compare_modes(const Program& program);
// Fewer ops and simpler settings that still end with the same verdict.
Program shrunk(Program program, Verdict verdict);

}  // namespace duet::testing::fuzz
