#pragma once

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include "graph/graph_options.h"

namespace duet::testing {

inline constexpr int64_t kWarmUp = 8;  // steps until the last of two signatures is captured

// Over the stand-in for a GPU kernels do nothing, so that no value means anything; cuDNN needs a GPU.
inline bool is_rehearsal() { return std::getenv("DUET_REHEARSAL") != nullptr; }

// Skipped where there is no GPU.
template <class Base = ::testing::Test>
class OnDevice : public Base {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "there is no GPU here";
    // Kernels with atomics give other bits each time; eager would differ from eager.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setBenchmarkCuDNN(false);
    at::globalContext().setUserEnabledCuDNN(!is_rehearsal());
  }
};

// Replays alone.
inline GraphOptions unchecked() {
  GraphOptions options;
  options.verify_interval = 0;
  options.check = Check::kOff;
  return options;
}

// What a comparison finds means nothing in a rehearsal.
inline GraphOptions checked() { return is_rehearsal() ? unchecked() : GraphOptions(); }

}  // namespace duet::testing
