#include <cstdint>
#include <string>
#include <tuple>
#include <ATen/Context.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "base/error.h"
#include "tests/cuda_stand_in/stand_in.h"
#include "tests/graph/cuda/device_run.h"

// Every call of the CUDA runtime in a step may fail once: in the one that is captured, in a replay, in a comparison.
// Training goes on, or ends with an error of CUDA's; nothing hangs, and the next trainer captures either way.

namespace duet {
namespace {

namespace cuda = testing::cuda;
using ::testing::AnyOf;
using testing::DeviceRun;
using testing::expect_all_works;
using ::testing::HasSubstr;
using testing::kDevice;
using testing::Kind;
using testing::kinds;
using testing::with_zeros;
using testing::zero_memory;

struct Moment {
  std::string name;
  int64_t steps_before = 0;  // from the first one of the signature
  GraphOptions graph = testing::without_checks();
  int64_t stride = 1;  // which calls fail: every so many
};

std::vector<Moment> moments() {
  GraphOptions compared = testing::without_checks();
  compared.verify_interval = 1;
  return {{.name = "capture", .steps_before = testing::kEagerSteps + 1},
          {.name = "replay", .steps_before = testing::kEagerSteps + 2},
          {.name = "comparison", .steps_before = testing::kEagerSteps + 3, .graph = compared, .stride = 5}};
}

uint64_t numbers_drawn() { return at::globalContext().defaultGenerator(kDevice).get_offset(); }

class CudaErrors : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  void SetUp() override { cuda::take_violations(); }
  void TearDown() override {
    cuda::fail("", 0, 0);
    EXPECT_FALSE(cuda::is_capturing());
  }

  // Up to the step in question.
  struct Prepared {
    Prepared(const Kind& kind, const Moment& moment) : run((seed_all(1), kind), moment.graph) {
      zero_memory();
      run.steps(moment.steps_before);
    }
    DeviceRun run;
  };
};

TEST_P(CudaErrors, AtAnyCallOfAStepTrainingGoesOnOrEndsWithAnError) {
  const Kind kind = with_zeros(kinds().at(std::get<0>(GetParam())));
  const int code = std::get<1>(GetParam());
  for (const Moment& moment : moments()) {
    int64_t calls = 0;
    uint64_t drawn = 0;
    {
      Prepared undisturbed(kind, moment);
      const int64_t before = cuda::calls_that_can_fail();
      undisturbed.run.step_at(8);
      calls = cuda::calls_that_can_fail() - before;
      undisturbed.run.steps(2);
      drawn = numbers_drawn();
      EXPECT_EQ(undisturbed.run.latest().state, "captured") << moment.name << undisturbed.run.latest().reason;
    }
    int64_t tried = 0, went_on = 0;
    for (int64_t n = 1; n <= calls; n += moment.stride, ++tried) {
      Prepared prepared(kind, moment);
      cuda::fail("*", n, code);
      std::string error;
      try {
        prepared.run.step_at(8);
        prepared.run.steps(2);
        ++went_on;
      } catch (const std::exception& failed) {
        error = failed.what();
      }
      SCOPED_TRACE(moment.name + ", call " + std::to_string(n) + " of " + std::to_string(calls) + ", " +
                   cuda::failed_call());
      EXPECT_NE(cuda::failed_call(), "");
      EXPECT_FALSE(cuda::is_capturing());
      cuda::fail("", 0, 0);
      if (error.empty()) {
        EXPECT_EQ(numbers_drawn(), drawn) << "what the next steps draw is no longer what eager mode draws";
      } else {
        EXPECT_THAT(error, AnyOf(HasSubstr("CUDA"), HasSubstr("[GraphTrainer]")));
      }
      if (tried % 9 == 0) expect_all_works();
    }
    if (moment.name == "capture") {
      EXPECT_GT(went_on, tried / 3) << "steps run eager where the device refuses";
    }
    expect_all_works();
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaErrors,
                         ::testing::Combine(::testing::Range(0, 3),
                                            ::testing::Values(static_cast<int>(cudaErrorUnknown),
                                                              static_cast<int>(cudaErrorMemoryAllocation))));

}  // namespace
}  // namespace duet
