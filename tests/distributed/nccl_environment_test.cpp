#include <cstdlib>
#include <c10/core/AllocatorConfig.h>
#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "distributed/detail/nccl_backend.h"
#include "tests/support/scoped_variable.h"

namespace duet {
namespace {

TEST(NcclEnvironment, IsThatOfCapturesUnlessTheUserHasSetIt) {
  const ScopedVariable graph("NCCL_GRAPH_REGISTER", ""), errors("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  unsetenv("NCCL_GRAPH_REGISTER");
  set_nccl_environment();
  EXPECT_STREQ(std::getenv("NCCL_GRAPH_REGISTER"), "0");
  EXPECT_STREQ(std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
}

TEST(NcclEnvironment, RegistersNoMemoryThatIsMappedPieceByPiece) {
  const ScopedVariable graph("NCCL_GRAPH_REGISTER", "1");
  EXPECT_NO_THROW(set_nccl_environment());
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  const auto back =
      c10::make_scope_exit([] { c10::CachingAllocator::setAllocatorSettings("expandable_segments:False"); });
  EXPECT_THROW(set_nccl_environment(), ConfigError);
  const ScopedVariable without("NCCL_GRAPH_REGISTER", "0");
  EXPECT_NO_THROW(set_nccl_environment());
}

}  // namespace
}  // namespace duet
