#include "base/detail/concat_text.h"
#include <new>
#include <gtest/gtest.h>
#include "tests/support/memory_limit.h"

namespace duet {
namespace {

TEST(ConcatText, WritesTheParts) {
  EXPECT_EQ(concat_text("step-", 12), "step-12");
  EXPECT_EQ(concat_text("configured", '.', 0, ".", std::string("eps")), "configured.0.eps");
}

TEST(ConcatText, ThrowsWhereMemoryRunsOut) {
  if (!memory_can_be_limited()) GTEST_SKIP();
  const std::string large(std::size_t{256} << 20, 'x');
  const MemoryLimit limit(uint64_t{64} << 20);
  EXPECT_THROW(concat_text(large, ".weight"), std::bad_alloc) << "a text cut short names something else";
}

}  // namespace
}  // namespace duet
