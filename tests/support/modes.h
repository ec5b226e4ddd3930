#pragma once

#include <string>
#include <gtest/gtest.h>

// Tests that are run in either mode: class Suite : public testing::InBothModes {}; and DUET_IN_BOTH_MODES(Suite);

namespace duet::testing {

class InBothModes : public ::testing::TestWithParam<std::string> {
 protected:
  std::string mode() const { return GetParam(); }
};

}  // namespace duet::testing

#define DUET_IN_BOTH_MODES(suite) \
  INSTANTIATE_TEST_SUITE_P(Modes, suite, ::testing::Values("eager", "graph"), [](const auto& one) { return one.param; })
