#include "cli/ranks.h"
#include <gtest/gtest.h>
#include "base/error.h"
#include "distributed/detail/connect.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

TEST(DeviceOfRank, TakesTheGpuOfTheLocalRankWhereAllAreVisible) {
  for (const char* wish : {"auto", "cuda"}) {
    EXPECT_EQ(device_of_rank(wish, 0, 4), "cuda:0");
    EXPECT_EQ(device_of_rank(wish, 3, 4), "cuda:3");
  }
}

// SLURM with --gpus-per-task=1: every process sees one GPU, as cuda:0.
TEST(DeviceOfRank, TakesTheOnlyGpuThatIsVisible) {
  for (const char* wish : {"auto", "cuda"}) EXPECT_EQ(device_of_rank(wish, 3, 1), "cuda:0");
}

TEST(DeviceOfRank, LeavesWhatWasSaidAsItIs) {
  for (const int64_t gpus : {0, 1, 4}) {
    EXPECT_EQ(device_of_rank("cpu", 2, gpus), "cpu");
    EXPECT_EQ(device_of_rank("cuda:1", 2, gpus), "cuda:1");
  }
  EXPECT_EQ(device_of_rank("auto", 2, 0), "auto");
}

TEST(DeviceOfRank, RefusesMoreProcessesThanGpus) {
  expect_error<ConfigError>([] { device_of_rank("cuda", 2, 2); }, {"local rank 2 and 2 GPUs", "device=cpu"});
  expect_error<ConfigError>([] { device_of_rank("auto", 5, 2); }, {"local rank 5 and 2 GPUs"});
  expect_error<ConfigError>([] { device_of_rank("cuda", 0, 0); }, {"local rank 0 and 0 GPUs"});
}

TEST(FindSharedGpu, TellsGpusApartByTheirIdentityAlone) {
  // The same index on the same host, in containers of their own; then two indices for one GPU.
  EXPECT_EQ(find_shared_gpu({{"GPU-a", "cuda:0 of host"}, {"GPU-b", "cuda:0 of host"}}), "");
  const std::string found =
      find_shared_gpu({{"GPU-a", "cuda:0 of x"}, {"GPU-b", "cuda:1 of x"}, {"GPU-a", "cuda:0 of y"}});
  EXPECT_NE(found.find("ranks 0 and 2 both train on GPU-a (cuda:0 of x and cuda:0 of y)"), std::string::npos) << found;
  EXPECT_EQ(find_shared_gpu({{"", "cpu of x"}, {"", "cpu of x"}}), "");
}

}  // namespace
}  // namespace duet
