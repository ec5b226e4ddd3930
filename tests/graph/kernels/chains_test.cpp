#include "graph/kernels/chains.h"
#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/task.h"
#include "tests/graph/kernels/kernel_cases.h"
#include "tests/graph/kernels/trainer_with_kernels.h"
#include "tests/support/trainer_runs.h"

// Ops of which each does some rows before the next rows follow: the bits of eager mode, whatever they share.

namespace duet {
namespace {

using testing::Calls;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Random;
using testing::same_bits;
using testing::Threads;
using testing::TrainerWithPasses;

class Chains : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_kernels()) GTEST_SKIP() << "no kernels for this CPU";
  }
};

constexpr ChainSizes kTiny{.cached = 64, .tile = 700};

void find_tiny_chains(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  find_chains(calls, kernels, kTiny);
}

// All passes, with chains of tensors that are small.
KernelPasses passes_with_tiny_chains() {
  static const KernelPass tiny{"tiny chain", &find_tiny_chains};
  KernelPasses passes = bitexact_passes();
  passes.back() = &tiny;
  return passes;
}

// A net of ops that work row by row, and some that do not, at random; what has been computed may be used again.
struct RandomNet : torch::nn::Module {
  static constexpr int64_t kImages = 4, kChannels = 6, kSize = 8;

  explicit RandomNet(uint64_t net_seed) : seed(net_seed) {
    row = register_parameter("row", torch::randn({kSize, kSize}));
    whole = register_parameter("whole", torch::randn({kImages, kChannels, kSize, kSize}));
  }

  at::Tensor apply(const at::Tensor& x, const at::Tensor& other, uint64_t choice) {
    switch (choice % 25) {
      case 0: return x.relu();
      case 1: return x * 0.5 + 0.25;
      case 2: return x * row;
      case 3: return x + other;
      case 4: return x - other * whole;
      case 5: return norm->forward(x);
      case 6: return torch::max_pool2d(x, {3, 3}, {1, 1}, {1, 1});
      case 7: return x + other.flip(0);
      case 8: return x + other.transpose(2, 3);
      case 9: return x.clone().mul_(0.75).add_(other);
      case 10: return (x * 1.25).view({-1}).relu_().view_as(x);
      case 11: {
        const at::Tensor y = x * 1;
        y.narrow(0, 0, kImages / 2).mul_(0.5);
        return y + other;
      }
      case 12: return x + x.narrow(0, 1, 1);
      case 13: return x / (other * other + 1);
      case 14: return x.sum(at::IntArrayRef({0, 1})).relu() + x;
      case 15: return x * (row.detach() * 2).relu() + row;
      case 16: return x + torch::gelu(other.detach() * whole.detach(), "tanh");
      case 17: return x + (other.detach() * whole.detach()).index_select(0, order);
      case 18: return torch::silu(x) * torch::sigmoid(other);
      case 19: return x / (other * other).mean(-1, true).add(1).rsqrt();
      case 20: return (x.transpose(1, 2) * other.transpose(1, 2) - row.narrow(0, 0, 1)).transpose(1, 2);
      case 21: return torch::cat({x.narrow(3, 0, kSize / 2), -other.narrow(3, kSize / 2, kSize / 2)}, 3);
      case 22: return torch::sigmoid(x).pow(3) + other.amax({0}, true);
      case 23: return (x.detach() * whole.detach()).reciprocal().tanh() + other.select(1, 0).unsqueeze(1);
      default: return torch::relu(norm->forward(x)) + other;
    }
  }

  at::Tensor forward(const at::Tensor& input) {
    std::mt19937_64 random(seed);
    std::vector<at::Tensor> known = {input + whole};
    for (int i = 0; i < 12; ++i) {
      const at::Tensor x = known[random() % 3 == 0 ? random() % known.size() : known.size() - 1];
      known.push_back(apply(x, known[random() % known.size()], random()));
    }
    return known.back().square().mean();
  }

  uint64_t seed;
  at::Tensor row, whole;
  at::Tensor order = register_buffer("order", torch::tensor({3, 2, 1, 0}));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(kChannels));
};

std::unique_ptr<Task> task_of(uint64_t seed) {
  seed_all(5);
  return make_task(std::make_shared<RandomNet>(seed),
                   [](RandomNet& net, const Batch& batch) { return net.forward(batch["x"]); });
}

// The fourth one has infinities, NaN and denormals.
Batch batch(uint64_t n) {
  const std::array sizes = {RandomNet::kImages, RandomNet::kChannels, RandomNet::kSize, RandomNet::kSize};
  if (n == 3) return {{"x", trial_tensor(sizes, TrialNumbers::kSpecial, n)}};
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(n);
  return {{"x", torch::randn(sizes, generator)}};
}

TEST_F(Chains, OfRandomNetsGiveTheBitsOfEager) {
  Random random;
  SCOPED_TRACE(random.seed);
  int64_t chained = 0;
  constexpr int kNets = 30;
  for (int net = 0; net < kNets; ++net) {
    const Threads threads(net % 6 == 0 ? 2 : 1);
    const uint64_t seed = random.bits();
    const auto eager = testing::make_trainer("eager", task_of(seed));
    TrainerWithPasses graph(task_of(seed), passes_with_tiny_chains(), {.fuse_after = 0, .verify_interval = 0});
    for (uint64_t n = 0; n < 5; ++n) {
      ASSERT_TRUE(same_bits(eager->step(batch(n)).loss, graph.step(batch(n)).loss)) << "net " << seed << " step " << n;
    }
    testing::expect_same_bits(eager->state_dict(), graph.state_dict());
    const SignatureReport report = graph.graph().report().back();
    ASSERT_EQ(report.state, "captured") << report.reason << " " << report.replays << " replays of net " << seed;
    chained += graph.graph().program_text().find("in a chain") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(chained, kNets * 3 / 4);
}

at::Tensor large(at::IntArrayRef sizes = {64, 8192}) { return trial_tensor(sizes, TrialNumbers::kPlain, 1); }

// y = a * b, then a relu of it, of large tensors.
Calls product_and_relu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& y, const at::Tensor& relu_of,
                       std::size_t segment = 0) {
  Calls calls;
  calls.add("aten::mul", "out", {a, b}, {y});
  calls.add("aten::relu_", "", {relu_of}, {}, segment);
  return calls;
}

int64_t chains_of(const Calls& calls) {
  int64_t count = 0;
  for (const BitexactKernel& kernel : find_bitexact_kernels(calls.calls, bitexact_passes()).of_call)
    count += kernel.in_chain ? 1 : 0;
  return count;
}

TEST_F(Chains, TakeWhatFollowsEachOtherInLargeTensors) {
  const at::Tensor a = large(), b = large(), y = large(), row = large({8192});
  EXPECT_EQ(chains_of(product_and_relu(a, b, y, y)), 2);
  EXPECT_EQ(chains_of(product_and_relu(a, row, y, y)), 2);
  const at::Tensor small = large({64, 64});
  EXPECT_EQ(chains_of(product_and_relu(small, large({64, 64}), small, small)), 0) << "in the cache anyway";
  EXPECT_EQ(chains_of(product_and_relu(a, b, y, large())), 0) << "nothing is shared";
  EXPECT_EQ(chains_of(product_and_relu(a, b, y, y, 1)), 0) << "host code runs in between";
  EXPECT_EQ(chains_of(product_and_relu(a, b, y, y.narrow(0, 0, 32))), 0) << "another part of the same memory";
  const at::Tensor memory = large({2, 64, 8192});
  EXPECT_EQ(chains_of(product_and_relu(a, b, memory.select(0, 0), memory.select(0, 1))), 0) << "likewise";
}

TEST_F(Chains, EndBeforeTheyHaveManyTensors) {
  Calls calls;
  at::Tensor x = large();
  for (int i = 0; i < 12; ++i) {
    const at::Tensor y = large();
    calls.add("aten::mul", "out", {x, x}, {y});
    x = y;
  }
  const auto kernels = find_bitexact_kernels(calls.calls, bitexact_passes());
  EXPECT_EQ(kernels.chains, (std::vector<std::pair<std::size_t, std::size_t>>{{0, 6}, {7, 11}}));
}

TEST_F(Chains, BeginAnewWhereAnOpNeedsAllOfItsInputFirst) {
  const at::Tensor x = large({16, 8, 64, 64}), y = large({16, 8, 64, 64}), z = large({16, 8, 64, 64});
  const c10::IValue none;
  Calls calls;
  calls.add("aten::relu_", "", {x});
  calls.add("aten::native_batch_norm", "out", {x, none, none, none, none, true, 0.1, 1e-5},
            {y, large({8}), large({8})});
  EXPECT_EQ(chains_of(calls), 0);
  calls.add("aten::mul", "out", {y, y}, {z});
  EXPECT_EQ(chains_of(calls), 2);
}

// Something may be written into the place of what is cut.
TEST_F(Chains, LeaveOutAReadOfAllThatAnotherOpCuts) {
  const at::Tensor x = large({16, 8, 128, 128}), y = large({16, 8, 32, 32}), grad_x = large({16, 8, 128, 128});
  const at::Tensor indices = at::empty(y.sizes(), at::kLong);
  const std::vector<int64_t> four = {4, 4}, none = {0, 0}, one = {1, 1};
  Calls calls;
  calls.add("aten::max_pool2d_with_indices", "out", {x, four, four, none, one, false}, {y, indices});
  calls.add("aten::mm", "out", {large({8, 8}), large({8, 8})}, {large({8, 8})});
  calls.add("aten::max_pool2d_with_indices_backward", "grad_input", {y, x, four, four, none, one, false, indices},
            {grad_x});
  calls.add("aten::mul_", "Tensor", {grad_x, x});
  EXPECT_EQ(chains_of(calls), 2);
  calls.add("aten::mul_", "Tensor", {grad_x, y.view({8, 128, 128})});
  EXPECT_EQ(chains_of(calls), 2);
}

// A pass whose relu is wrong in its second half when it runs in a chain.
void find_sabotaged_chains(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    RowByRow& work = kernels.of_call[i].by_rows;
    if (!calls[i].is("aten::relu", "") || work.rows == 0) continue;
    work.run = [right = work.run, y = calls[i].result(0), half = work.rows / 2](int64_t begin, int64_t end) {
      right(begin, end);
      float* const last = static_cast<float*>(y.mutable_data_ptr()) + y.numel() - 1;
      if (end > half) *last += 1;
    };
  }
  find_chains(calls, kernels, kTiny);
}

struct BlockNet : torch::nn::Module {
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(6));
  at::Tensor forward(const at::Tensor& x) { return torch::max_pool2d(norm(x).relu() + 1, {2, 2}).square().mean(); }
};

TEST_F(Chains, ThatAreWrongAreNamedAndGiveWay) {
  const auto task = [] {
    return make_task(std::make_shared<BlockNet>(),
                     [](BlockNet& net, const Batch& input) { return net.forward(input["x"]); });
  };
  static const KernelPass wrong{"wrong chain", &find_sabotaged_chains};
  KernelPasses passes = bitexact_passes();
  passes.back() = &wrong;
  const auto eager = testing::make_trainer("eager", task());
  TrainerWithPasses graph(task(), passes, {.fuse_after = 0, .verify_interval = 1});
  for (uint64_t n = 10; n < 18; ++n) {
    ASSERT_TRUE(same_bits(eager->step(batch(n)).loss, graph.step(batch(n)).loss)) << "step " << n;
  }
  EXPECT_EQ(graph.graph().report().front().state, "captured");
  EXPECT_THAT(graph.graph().report().front().reason, HasSubstr("in a chain"));
  EXPECT_THAT(graph.graph().program_text(), Not(HasSubstr("in a chain")));
}

// The sum's i-th row is of all rows of the product.
struct TurnedNet : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", torch::ones({1}));
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = (x * weight).view({8, 8, -1});
    return (y + y.transpose(0, 1)).abs().mean();
  }
};

TEST_F(Chains, EndWhereRowsAreOthers) {
  const auto task = [] {
    return make_task(std::make_shared<TurnedNet>(),
                     [](TurnedNet& net, const Batch& input) { return net.forward(input["x"]); });
  };
  const auto eager = testing::make_trainer("eager", task());
  TrainerWithPasses graph(task(), passes_with_tiny_chains(), {.fuse_after = 0, .verify_interval = 0});
  for (uint64_t n = 4; n < 9; ++n) ASSERT_TRUE(same_bits(eager->step(batch(n)).loss, graph.step(batch(n)).loss)) << n;
}

TEST_F(Chains, EndWithAPassWhoseKernelsTheyHave) {
  static const KernelPass arithmetic{"arithmetic of a chain", &find_direct_pointwise};
  static const KernelPass tiny{"tiny chain", &find_tiny_chains};
  TrainerWithPasses graph(make_task(std::make_shared<BlockNet>(),
                                    [](BlockNet& net, const Batch& input) { return net.forward(input["x"]); }),
                          {&arithmetic, &tiny}, {.fuse_after = 0, .verify_interval = 0});
  for (uint64_t n = 0; n < 4; ++n) graph.step(batch(n));
  EXPECT_THAT(graph.graph().program_text(), HasSubstr("in a chain"));
  switch_off(arithmetic);
  graph.step(batch(4));
  EXPECT_THAT(graph.graph().program_text(), Not(HasSubstr("in a chain")));
}

}  // namespace
}  // namespace duet
