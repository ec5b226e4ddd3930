#include <tuple>
#include <gtest/gtest.h>
#include "base/error.h"
#include "distributed/detail/connect.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

// With one visible GPU it is that: SLURM with --gpus-per-task=1 shows it to every process as cuda:0.
TEST(DeviceOfRank, IsTheGpuOfTheLocalRankUnlessTheConfigSays) {
  for (const auto& [wish, local_rank, gpus, device] : {std::tuple("auto", 0, 4, "cuda:0"),
                                                       {"cuda", 3, 4, "cuda:3"},
                                                       {"auto", 3, 1, "cuda:0"},
                                                       {"cuda", 3, 1, "cuda:0"},
                                                       {"cpu", 2, 4, "cpu"},
                                                       {"cuda:1", 2, 4, "cuda:1"},
                                                       {"auto", 2, 0, "auto"}})
    EXPECT_EQ(device_of_rank(wish, local_rank, gpus), device);
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
