#include <stdexcept>
#include <gtest/gtest.h>
#include "base/error.h"
#include "distributed/detail/connect.h"
#include "tests/support/ranks.h"

// A rank that cannot train says so before the ranks have connected.
namespace duet {
namespace {

using testing::RankResult;
using testing::run_processes;

// What all see if rank `failing` of three has `error`. The others train on another device, which is not compared.
std::vector<RankResult> fail_one(int64_t failing, const std::exception_ptr& error) {
  return run_processes(3, [&](const Launch& launch) {
    if (launch.rank != failing) {
      connect(launch, at::Device(at::kCUDA, 0), {.start_timeout = 200});
      return NamedTensors();
    }
    fail_to_connect(launch, error, {.start_timeout = 200});
    std::rethrow_exception(error);
  });
}

void expect_told(const std::vector<RankResult>& results, int64_t failing, int exit_code, const std::string& text) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const bool own = static_cast<int64_t>(rank) == failing;
    const std::string whole = own ? text : "on rank " + std::to_string(failing) + ": " + text;
    EXPECT_EQ(results[rank].error, whole) << "rank " << rank;
    EXPECT_EQ(results[rank].exit_code, exit_code) << "rank " << rank;
    EXPECT_LT(results[rank].seconds, testing::kAtOnce) << "it was a timeout";
  }
}

TEST(FirstErrors, AreThoseOfAllRanks) {
  for (const int64_t failing : {0, 2}) {
    const auto told = [&](const auto& error) { return fail_one(failing, std::make_exception_ptr(error)); };
    expect_told(told(ConfigError("no such flag")), failing, 2, "no such flag");
    expect_told(told(DataError("no such file")), failing, 3, "no such file");
    expect_told(told(std::runtime_error("bad luck\nin two lines")), failing, 1, "bad luck\nin two lines");
  }
}

TEST(FirstErrors, OfSeveralRanksAreEachItsOwn) {
  const auto results = run_processes(3, [](const Launch& launch) {
    if (launch.rank == 0) {
      connect(launch, at::kCPU, {.start_timeout = 200});
      return NamedTensors();
    }
    const auto error = std::make_exception_ptr(ConfigError("mistake " + std::to_string(launch.rank)));
    fail_to_connect(launch, error, {.start_timeout = 200});
    std::rethrow_exception(error);
  });
  EXPECT_EQ(results[0].error, "on rank 1: mistake 1");
  EXPECT_EQ(results[1].error, "mistake 1");
  EXPECT_EQ(results[2].error, "mistake 2");
}

}  // namespace
}  // namespace duet
