#pragma once

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "tests/cuda_stand_in/stand_in.h"
#include "tests/graph/cuda/device_run.h"

namespace duet::testing {

// What an eager step and the next capture of the process need.
inline void expect_all_works() {
  cuda::take_violations();
  EXPECT_NO_THROW(at::dropout(at::ones({4}, kDevice), 0.5, true)) << "outside a capture";
  DeviceRun other;
  other.steps(kEagerSteps + 3);
  EXPECT_EQ(other.latest().state, "captured") << other.latest().reason;
  EXPECT_EQ(other.latest().replays, 2);
  EXPECT_THAT(cuda::take_violations(), ::testing::IsEmpty());
}

}  // namespace duet::testing
