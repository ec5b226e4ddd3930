#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "base/error.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

TEST(Random, SeedFixesWhatIsDrawn) {
  seed_all(17);
  const at::Tensor first = at::randn({5});
  seed_all(17);
  EXPECT_TRUE(at::equal(at::randn({5}), first));
  seed_all(18);
  EXPECT_FALSE(at::equal(at::randn({5}), first));
}

TEST(Random, StateGoesOnWhereItWasTaken) {
  seed_all(1);
  at::randn({3});  // leaves half of a Gauss pair in the generator
  const StateDict state = random_state();
  const at::Tensor expected = at::randn({7});
  at::rand({100});
  set_random_state(state);
  EXPECT_TRUE(at::equal(at::randn({7}), expected));
}

TEST(Random, RefusesAStateThatIsMissingOrDamaged) {
  const StateDict before = random_state();
  expect_error<CheckpointError>([] { set_random_state(StateDict()); }, {"cpu"});
  for (const at::Tensor& bad : {at::zeros({5}, at::kByte), at::zeros_like(before.tensor("cpu"), at::kFloat),
                                at::full_like(before.tensor("cpu"), 255)}) {
    StateDict state = before;
    state.set("cpu", bad);
    expect_error<CheckpointError>([&] { set_random_state(state); }, {"[Random]", "'cpu'"});
  }
  EXPECT_TRUE(at::equal(random_state().tensor("cpu"), before.tensor("cpu")));
}

TEST(Random, CpuSeedGuardGivesTheGeneratorBack) {
  seed_all(4);
  const at::Tensor expected = at::rand({3});
  seed_all(4);
  at::Tensor inside;
  {
    const CpuSeedGuard guard(9);
    inside = at::rand({3});
  }
  EXPECT_TRUE(at::equal(at::rand({3}), expected));
  seed_all(9);
  EXPECT_TRUE(at::equal(at::rand({3}), inside));
}

TEST(ParseDevice, KnowsItsWords) {
  EXPECT_EQ(parse_device("cpu"), at::Device(at::kCPU));
  EXPECT_EQ(parse_device("auto").type(), cuda_available() ? at::kCUDA : at::kCPU);
  for (const char* bad : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:99", "cuda:9999999999", "CPU"}) {
    expect_error<ConfigError>([&] { parse_device(bad); }, {"'device'", "this machine has cpu", bad});
  }
  if (cuda_available()) {
    EXPECT_EQ(parse_device("cuda"), at::Device(at::kCUDA, 0));
  } else {
    expect_error<ConfigError>([] { parse_device("cuda"); }, {"cpu"});
  }
}

}  // namespace
}  // namespace duet
