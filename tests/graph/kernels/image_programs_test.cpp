#include <sstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "core/task.h"
#include "graph/kernels/bitexact_batch_norm.h"
#include "graph/kernels/bitexact_max_pool.h"
#include "tests/graph/kernels/kernel_cases.h"
#include "tests/graph/step_cases.h"
#include "tests/support/trainer_runs.h"

// Whole steps of a network of images: duet's kernels take the place of ATen's, and nothing else changes.

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
};

std::unique_ptr<BaseTrainer> image_trainer(const std::string& mode, Fuse fuse = Fuse::kExact) {
  seed_all(5);
  auto task = make_task(std::make_shared<ImageNet>(), [](ImageNet& net, const Batch& batch) {
    at::Tensor x = at::max_pool2d(at::relu(net.norm1(net.conv1(batch["x"]))), {2, 2});
    x = at::max_pool2d(at::relu(net.norm2(net.conv2(x))), {3, 3}, {2, 2}, {1, 1});
    return net.head(x.flatten(1)).square().mean();
  });
  GraphOptions graph;
  graph.fuse = fuse;
  graph.verify_interval = 0;
  return testing::make_trainer(mode, std::move(task), {}, graph);
}

Batch image_batch(uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"x", torch::randn({5, 2, 20, 23}, generator)}};
}

TEST(ImagePrograms, GiveTheBitsOfEagerWithOneThreadAndWithTwo) {
  for (const int threads : {1, 2}) {
    const Threads scope(threads);
    const auto eager = image_trainer("eager");
    const auto graph = image_trainer("graph");
    for (uint64_t n = 0; n < 12; ++n) {
      EXPECT_TRUE(same_bits(eager->step(image_batch(n)).loss, graph->step(image_batch(n)).loss))
          << threads << " threads, step " << n;
    }
    expect_same_bits(eager->state_dict(), graph->state_dict());
  }
}

TEST(ImagePrograms, RunATensKernelsWhenTheSettingsChangeAndOursAgainAfterwards) {
  const Threads one(1);
  const auto eager = image_trainer("eager");
  const auto graph = image_trainer("graph");
  for (uint64_t n = 0; n < 12; ++n) {
    at::set_num_threads(n >= 4 && n < 8 ? 2 : 1);
    EXPECT_TRUE(same_bits(eager->step(image_batch(n)).loss, graph->step(image_batch(n)).loss)) << "step " << n;
  }
  expect_same_bits(eager->state_dict(), graph->state_dict());
}

int lines_with(const std::string& text, const std::string& op, const std::string& end) {
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    count += line.find(op) != std::string::npos && line.ends_with(end) ? 1 : 0;
  }
  return count;
}

TEST(ImagePrograms, NameTheKernels) {
  const auto text = [](Fuse fuse) {
    const auto graph = image_trainer("graph", fuse);
    for (uint64_t n = 0; n < 3; ++n) graph->step(image_batch(n));
    return dynamic_cast<GraphTrainer&>(*graph).program_text();
  };
  const std::string fused = text(Fuse::kExact);
  EXPECT_THAT(text(Fuse::kOff), Not(HasSubstr("bit-exact")));
  if (fast_max_pool_kernels().forward != nullptr) {
    EXPECT_EQ(lines_with(fused, "aten::max_pool2d_with_indices.out(", "# out, bit-exact max_pool2d"), 2);
    EXPECT_EQ(lines_with(fused, "aten::max_pool2d_with_indices_backward.grad_input(",
                         "# out, bit-exact max_pool2d, takes the indices"),
              2);
  }
  if (fast_batch_norm_kernels().forward != nullptr) {
    EXPECT_EQ(lines_with(fused, "aten::native_batch_norm.out(", "# out, bit-exact batch norm"), 2);
    EXPECT_EQ(lines_with(fused, "aten::native_batch_norm_backward(", "# copy, bit-exact batch norm"), 2);
  }
}

}  // namespace
}  // namespace duet
