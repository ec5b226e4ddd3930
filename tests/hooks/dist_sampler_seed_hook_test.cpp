#include <memory>
#include <gtest/gtest.h>
#include "core/hook.h"
#include "hooks/detail/run_info_hooks.h"
#include "tests/support/log_lines.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"

namespace duet {
namespace {

class DistSamplerSeed : public testing::InBothModes {
 protected:
  static std::string log_of(bool shuffle) {
    return testing::stderr_of([shuffle] {
      const auto trainer = testing::trainer_for(GetParam(), {.max_epochs = 2});
      trainer->add_hook(std::make_unique<DistSamplerSeedHook>());
      const auto data = testing::loader(12, 4, shuffle);
      for (int training = 0; training < 2; ++training) trainer->train(*data);
    });
  }
};

TEST_P(DistSamplerSeed, WarnsOnceIfTheOrderStays) {
  const std::string log = log_of(false);
  EXPECT_NE(log.find("the same order in every epoch"), std::string::npos) << log;
  EXPECT_EQ(log.find("[DistSamplerSeedHook]"), log.rfind("[DistSamplerSeedHook]")) << log;
  EXPECT_EQ(log_of(true).find("[DistSamplerSeedHook]"), std::string::npos);
}

DUET_IN_BOTH_MODES(DistSamplerSeed);

}  // namespace
}  // namespace duet
