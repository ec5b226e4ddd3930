#include <sstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/task.h"
#include "tests/graph/kernels/kernel_cases.h"
#include "tests/support/trainer_runs.h"

// Whole steps: duet's kernels take the place of ATen's, and nothing else changes.

namespace duet {
namespace {

using testing::expect_same_bits;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::same_bits;
using testing::Threads;

struct ImageNet : torch::nn::Module {
  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 3).padding(1)));
  torch::nn::BatchNorm2d norm1 = register_module("norm1", torch::nn::BatchNorm2d(6));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 9, 3).padding(1)));
  torch::nn::BatchNorm2d norm2 =
      register_module("norm2", torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(9).affine(false)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(9 * 5 * 6, 3));
  at::Tensor forward(at::Tensor x) {
    x = at::max_pool2d(at::relu(norm1(conv1(x))), {2, 2});
    x = at::max_pool2d(at::relu(norm2(conv2(x))), {3, 3}, {2, 2}, {1, 1});
    return head(x.flatten(1));
  }
};

struct GeluNet : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(64, 256));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(256, 64));
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x), "tanh")); }
};

struct LstmNet : torch::nn::Module {
  torch::nn::LSTM lstm = register_module(
      "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(5, 16).num_layers(2).bidirectional(true).batch_first(true)));
  at::Tensor forward(const at::Tensor& x) { return std::get<0>(lstm(x)).sum(1); }
};

template <class Net>
std::unique_ptr<Task> task_of() {
  return make_task(std::make_shared<Net>(),
                   [](Net& net, const Batch& batch) { return net.forward(batch["x"]).square().mean(); });
}

// A line of the program that has the op and ends like this, so many times.
struct Line {
  std::string op, end;
  int times;
};

struct Net {
  std::string name;
  std::unique_ptr<Task> (*task)();
  std::vector<int64_t> sizes;  // of a batch
  std::vector<Line> lines;
  bool as_onednn_with_avx2 = false;
};

void PrintTo(const Net& net, std::ostream* out) { *out << net.name; }

std::vector<Net> nets() {
  return {
      {"Images",
       task_of<ImageNet>,
       {5, 2, 20, 23},
       {{"aten::max_pool2d_with_indices.out(", "# out, bit-exact max_pool2d", 2},
        {"aten::max_pool2d_with_indices_backward.grad_input(", "# out, bit-exact max_pool2d, takes the indices", 2},
        {"aten::native_batch_norm.out(", "# out, bit-exact batch norm", 2},
        {"aten::native_batch_norm_backward(", "# copy, bit-exact batch norm", 2}}},
      {"Gelu",
       task_of<GeluNet>,
       {4, 24, 64},
       {{"aten::gelu.out(", "keeps what both need", 1}, {"aten::gelu_backward.grad_input(", "takes what was kept", 1}}},
      {"Lstm",
       task_of<LstmNet>,
       {6, 12, 5},
       {{"aten::mkldnn_rnn_layer(", "# copy, bit-exact LSTM", 4},
        {"aten::mkldnn_rnn_layer_backward(", "# copy, bit-exact LSTM", 4}},
       /*as_onednn_with_avx2=*/true}};
}

class KernelPrograms : public ::testing::TestWithParam<Net> {
 protected:
  static std::unique_ptr<BaseTrainer> trainer(const std::string& mode, Fuse fuse = Fuse::kExact) {
    seed_all(5);
    return testing::make_trainer(mode, GetParam().task(), {}, {.fuse = fuse, .fuse_after = 0, .verify_interval = 0});
  }
  static Batch batch(int64_t n) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(n));
    return {{"x", torch::randn(GetParam().sizes, generator)}};
  }
  // 12 steps with as many threads as `threads` says of each.
  static void expect_eager_bits(const std::function<int(int64_t step)>& threads) {
    const Threads scope(threads(0));
    const auto eager = trainer("eager"), graph = trainer("graph");
    for (int64_t n = 0; n < 12; ++n) {
      at::set_num_threads(threads(n));
      EXPECT_TRUE(same_bits(eager->step(batch(n)).loss, graph->step(batch(n)).loss)) << "step " << n;
    }
    expect_same_bits(eager->state_dict(), graph->state_dict());
  }
  static std::string program(Fuse fuse) {
    const Threads one(1);
    const auto graph = trainer("graph", fuse);
    for (int64_t n = 0; n < 3; ++n) graph->step(batch(n));
    return dynamic_cast<GraphTrainer&>(*graph).program_text();
  }
};

TEST_P(KernelPrograms, GiveTheBitsOfEagerWithOneThreadAndWithTwo) {
  for (const int threads : {1, 2}) expect_eager_bits([threads](int64_t) { return threads; });
}

TEST_P(KernelPrograms, RunATensKernelsWhenTheSettingsChangeAndOursAgainAfterwards) {
  expect_eager_bits([](int64_t step) { return step >= 4 && step < 8 ? 2 : 1; });
}

TEST_P(KernelPrograms, NameTheKernelsWhichCanBeSwitchedOff) {
  const std::string fused = program(Fuse::kExact), off = program(Fuse::kOff);
  for (const char* kernel : {"bit-exact", "keeps what both need"}) EXPECT_THAT(off, Not(HasSubstr(kernel)));
  for (const auto& [op, end, times] : GetParam().lines) {
    std::istringstream lines(fused);
    int count = 0;
    for (std::string line; std::getline(lines, line);)
      count += line.find(op) != std::string::npos && line.ends_with(end) ? 1 : 0;
    if (GetParam().as_onednn_with_avx2 && !testing::computes_as_onednn_with("AVX2")) continue;
    EXPECT_EQ(count, testing::has_kernels() ? times : 0) << op << "\n" << fused;
  }
}

INSTANTIATE_TEST_SUITE_P(, KernelPrograms, ::testing::ValuesIn(nets()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace duet
