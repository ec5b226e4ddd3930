#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"
#include "base/state_dict.h"
#include "core/trainer.h"
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

// Looks at the weights in a rehearsal, too, where they mean nothing.
inline void expect_same_weights(const BaseTrainer& a, const BaseTrainer& b) {
  const StateDict left = a.state_dict(), right = b.state_dict();
  const auto named = [](const StateDict& state) {
    return NamedTensors(state.tensors().begin(), state.tensors().end());
  };
  const std::vector<std::string> different = differences(named(left), named(right));
  if (!is_rehearsal()) {
    EXPECT_EQ(different, std::vector<std::string>{});
  }
}

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
