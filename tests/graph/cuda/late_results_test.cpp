#include <vector>
#include <gtest/gtest.h>
#include "tests/graph/cuda/captured_steps.h"

// What a step gives stays what it is, however many steps later somebody reads it.

namespace duet {
namespace {

using testing::same_bits;
using testing::Setting;
using testing::Steps;

class LateResults : public ::testing::TestWithParam<bool> {};

TEST_P(LateResults, AreThoseOfTheirStep) {
  for (const bool splits : {false, true}) {
    const Setting setting{.splits = splits};
    std::vector<NamedTensors> wanted, kept;
    Steps eager(setting, GetParam());
    for (int n = 0; n < 20; ++n) {
      eager.next_path();
      wanted.push_back(eager.run(/*captured=*/false).all());
      for (auto& item : wanted.back()) item.second = item.second.clone();
    }
    Steps graph(setting, GetParam());
    for (int n = 0; n < 20; ++n) kept.push_back(graph.step().all());
    EXPECT_GE(graph.report().replays, 15);
    for (std::size_t n = 0; n < wanted.size(); ++n) {
      ASSERT_EQ(wanted[n].size(), kept[n].size());
      for (std::size_t i = 0; i < wanted[n].size(); ++i) {
        EXPECT_TRUE(same_bits(wanted[n][i].second, kept[n][i].second)) << wanted[n][i].first << " of step " << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, LateResults, ::testing::Bool(),
                         [](const auto& by) { return by.param ? "ByDeviceGraphs" : "ByCpuPrograms"; });

}  // namespace
}  // namespace duet
