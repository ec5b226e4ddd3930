#include "distributed/detail/value_sum.h"
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_communicator.h"

namespace duet {
namespace {

// Another rank that says of itself what a test wants; this one has no micro-batch.
class OtherRank : public testing::FakeCommunicator {
 public:
  explicit OtherRank(std::string plan) : FakeCommunicator(0, 2), plan_(std::move(plan)) {}
  using FakeCommunicator::all_gather;
  std::vector<std::string> all_gather(const std::string& bytes) override { return {bytes, plan_}; }

 private:
  std::string plan_;
};

// The number is another process's word: no type is made of it before it is known to be one.
TEST(ValueSum, RefusesANumberOfNoDtype) {
  for (const char* dtype : {"999", "-1", "256"}) {
    ValueSum sum(std::make_shared<OtherRank>(std::string(dtype) + " loss\n"), at::kCPU);
    expect_error<PeerError>([&] { sum.start({}); }, {"'loss'", std::string("dtype number ") + dtype});
  }
}

TEST(ValueSum, TakesThePlanOfTheOthersWithoutAMicroBatch) {
  ValueSum sum(std::make_shared<OtherRank>("7 loss\n"), at::kCPU);
  sum.start({});
  const NamedTensors sums = sum.finish();
  ASSERT_EQ(sums.size(), 1U);
  EXPECT_EQ(sums[0].first, "loss");
  EXPECT_EQ(sums[0].second.scalar_type(), at::kDouble);
}

}  // namespace
}  // namespace duet
