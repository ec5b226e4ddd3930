#include <optional>
#include <stdexcept>
#include <gtest/gtest.h>
#include "optim/amp.h"
#include "tests/support/autocast_state.h"

namespace duet {
namespace {

using testing::AutocastState;

TEST(AutocastGuard, RestoresWhatItFoundAlsoOnAThrow) {
  const AutocastState outside;
  try {
    const AutocastGuard guard(at::kCPU, at::kBFloat16);
    const AutocastState inside;
    EXPECT_TRUE(inside.enabled);
    EXPECT_EQ(inside.dtype, at::kBFloat16);
    EXPECT_FALSE(inside.cache);
    {
      const AutocastGuard nothing(at::kCPU, std::nullopt);
      EXPECT_TRUE(AutocastState() == inside);
      const AutocastGuard nested(at::kCPU, at::kHalf);
      EXPECT_EQ(AutocastState().dtype, at::kHalf);
    }
    EXPECT_TRUE(AutocastState() == inside);
    throw std::runtime_error("from within");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(AutocastState() == outside);
}

}  // namespace
}  // namespace duet
