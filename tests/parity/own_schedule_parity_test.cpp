#include <gtest/gtest.h>
#include "optim/schedules/detail/schedule_rules.h"
#include "tests/support/loop_runs.h"

// A schedule of somebody's own: what the built-in one does with the same formula, and the same bits in both modes.

namespace duet {
namespace {

using testing::expect_same_bits;

CustomSchedule own_schedule(int64_t begin, int64_t end) {
  const auto formula = [](const ScheduleStep& at) {
    const double share = static_cast<double>(at.s) / static_cast<double>(at.length - 1);
    return at.taken_over * (1.0 * (1 - share) + 0.1 * share);
  };
  return {.type = "OwnLinear", .formula = formula, .begin = begin, .end = end};
}

TEST(OwnSchedule, GivesTheValuesOfItsFormula) {
  const Linear linear{.start_factor = 1.0, .end_factor = 0.1, .begin = 3, .end = 9};
  const Constant constant{.factor = 0.5, .end = 3};
  const ScheduleCurve own({constant, own_schedule(3, 9)}, "lr", {20, 0}), built_in({constant, linear}, "lr", {20, 0});
  for (int64_t step = 0; step < 20; ++step) EXPECT_EQ(own.at(step, 0.3), built_in.at(step, 0.3)) << step;
}

TEST(OwnSchedule, GraphGivesTheBitsOfEager) {
  for (const int64_t accumulate : {1, 4}) {
    std::vector<StateDict> weights;
    for (const auto& [mode, own] :
         std::vector<std::pair<std::string, bool>>{{"eager", true}, {"graph", true}, {"eager", false}}) {
      LoopOptions loop;
      loop.max_steps = 12;
      loop.accumulate = accumulate;
      const auto trainer = testing::trainer_for(
          mode, loop, "AdamW", "", own ? std::vector<Schedule>{own_schedule(2, -1)} : std::vector<Schedule>());
      const auto data = testing::loader(40);
      trainer->train(*data);
      weights.push_back(trainer->weights());
    }
    expect_same_bits(weights[0], weights[1]);
    bool same = true;
    for (const auto& [name, tensor] : weights[0].tensors())
      same = same && testing::same_bits(tensor, weights[2].tensor(name));
    EXPECT_FALSE(same) << "the schedule had no effect";
  }
}

}  // namespace
}  // namespace duet
