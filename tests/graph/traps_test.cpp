#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "tests/graph/trap.h"

namespace duet {
namespace {

using testing::RunOutcome;
using testing::Trap;
using testing::Traps;

std::vector<Trap> all_traps() {
  Traps add;
  add_counter_cases(add);
  add_module_cases(add);
  add_aliasing_cases(add);
  add_setting_cases(add);
  add_kept_cases(add);
  add_read_cases(add);
  add_prediction_cases(add);
  add_crash_cases(add);
  return add.traps;
}

class HostCodeTraps : public ::testing::TestWithParam<Trap> {};

TEST_P(HostCodeTraps, GiveTheBitsOfEagerOrAnErrorThatNamesTheCause) {
  const auto& [name, expected, set_up] = GetParam();
  const RunOutcome graph = testing::expect_same_in_both_modes(set_up, expected.steps);
  EXPECT_THAT(graph.reasons(), ::testing::HasSubstr(expected.reason));
  if (!expected.stays_captured) return;
  EXPECT_EQ(graph.reasons(), "");
  EXPECT_EQ(graph.report.back().state, "captured");
}

INSTANTIATE_TEST_SUITE_P(All, HostCodeTraps, ::testing::ValuesIn(all_traps()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace duet
