#include "hooks/throughput_hook.h"
#include <map>
#include <string>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/detail/kernel_clock.h"
#include "core/task.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/modes.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using at::Tensor;

class Throughput : public testing::InBothModes {};
DUET_IN_BOTH_MODES(Throughput);

std::map<std::string, double> logged(const TrainContext& context) {
  std::map<std::string, double> values;
  for (const auto& [name, value] : context.log.values()) values[name] = value.item<double>();
  return values;
}

// Of a step of `task`, once the hook knows them.
double flops_of_step(const std::string& mode, std::unique_ptr<Task> task, const Batch& batch) {
  TrainerOptions options;
  options.device = "cpu";
  const auto trainer = testing::make_trainer(mode, std::move(task), options);
  trainer->add_hook(std::make_unique<ThroughputHook>(ThroughputHookOptions{.peak_flops = 1e12}));
  double flops = 0;
  const auto look = [&](TrainContext& at) { flops = logged(at).at("flops_per_step"); };
  trainer->on(HookPoint::kAfterTrainIter, look, "look", kLowest);
  for (int step = 0; step < 3; ++step) trainer->step(batch);
  trainer->finish();
  return flops;
}

template <class Module>
std::unique_ptr<Task> squares(std::shared_ptr<Module> module) {
  return make_task(module, [](Module& own, const Batch& batch) { return own.forward(batch["x"]).square().mean(); });
}

// By hand: a layer's product forward, and backward for its weight and, but for the first layer, for its input.

TEST_P(Throughput, FlopsOfAnMlpAreThoseByHand) {
  const auto model = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(20, 30), torch::nn::ReLU(),
                                                                 torch::nn::Linear(30, 7));
  const double by_hand = 2.0 * 16 * (2 * 20 * 30 + 3 * 30 * 7);
  EXPECT_EQ(flops_of_step(mode(), squares(model), {{"x", torch::randn({16, 20})}}), by_hand);
}

struct Cnn : torch::nn::Module {
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(3, 8, 3).padding(1)};
  torch::nn::Conv2d grouped{torch::nn::Conv2dOptions(8, 12, {3, 5}).stride({2, 1}).dilation({1, 2}).groups(4)};
  torch::nn::ConvTranspose2d up{torch::nn::ConvTranspose2dOptions(12, 6, 2).stride(2)};
  torch::nn::Linear head{6, 5};
  Cnn() {
    register_module("first", first);
    register_module("grouped", grouped);
    register_module("up", up);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) { return head(up(grouped(first(x))).mean({2, 3})); }
};

TEST_P(Throughput, FlopsOfACnnAreThoseByHand) {
  const double n = 4, first = 12 * 14 * (8 * 3 * 9), grouped = 5 * 6 * (12 * 2 * 15), up = 5 * 6 * (12 * 6 * 4);
  const double by_hand = 2 * n * (2 * first + 3 * grouped + 3 * up + 3 * 6 * 5);
  EXPECT_EQ(flops_of_step(mode(), squares(std::make_shared<Cnn>()), {{"x", torch::randn({4, 3, 12, 14})}}), by_hand);
}

struct Gpt : torch::nn::Module {
  torch::nn::Embedding tokens{65, 32};
  std::vector<torch::nn::Linear> qkv, out, up, down;
  Gpt() {
    register_module("tokens", tokens);
    const auto add = [&](std::vector<torch::nn::Linear>& layers, const char* name, int64_t from, int64_t to) {
      layers.push_back(register_module(name + std::to_string(layers.size()), torch::nn::Linear(from, to)));
    };
    for (int i = 0; i < 2; ++i) {
      add(qkv, "qkv", 32, 96);
      add(out, "out", 32, 32);
      add(up, "up", 32, 128);
      add(down, "down", 128, 32);
    }
  }
  Tensor forward(const Tensor& input) {
    Tensor x = tokens(input);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto heads = qkv[i](x).view({3, 48, 3, 4, 8}).permute({2, 0, 3, 1, 4}).unbind();
      const Tensor y = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, /*is_causal=*/true);
      x = x + out[i](y.transpose(1, 2).reshape({3, 48, 32}));
      x = x + down[i](torch::gelu(up[i](x)));
    }
    return at::linear(x, tokens->weight);
  }
};

// In each layer 12 T C² multiply-adds of matrices and V C T of the last one, each three times, and T² pairs of a head,
// of which there are two products forward and five backward.
TEST_P(Throughput, FlopsOfAGptAreThoseByHand) {
  const double n = 3, t = 48, c = 32, v = 65, pairs = t * t;
  const double by_hand = 2 * n * (3 * (2 * 12 * t * c * c + t * c * v) + 2 * 7 * pairs * c);
  const Tensor tokens = torch::arange(3 * 48).view({3, 48}) % 65;
  EXPECT_EQ(flops_of_step(mode(), squares(std::make_shared<Gpt>()), {{"x", tokens}}), by_hand);
}

// Calls within one that is counted are part of it, and one clock at a time counts.
TEST(KernelClock, CountsACallOnce) {
  KernelClock clock;
  KernelClock second;
  torch::matmul(torch::ones({2, 3, 4}), torch::ones({4, 5}));
  torch::mm(torch::ones({2, 2}, torch::kBFloat16), torch::ones({2, 2}, torch::kBFloat16));
  EXPECT_EQ(second.end_step().flops, 0);
  EXPECT_EQ(clock.end_step().flops, 2 * (2 * 3 * 4 * 5 + 2 * 2 * 2));
  EXPECT_EQ(clock.median_step().dtype, at::kBFloat16);
}

TEST(ThroughputHook, LogsTokensAndMfuOfEachStep) {
  FakeRun run;
  ThroughputHook hook({.peak_flops = 1000});
  MicroBatches micro_batches{
      {Batch{{"tokens", torch::zeros({2, 5}, torch::kLong)}}}, {10}, 10, /*samples_elsewhere=*/4};
  run.context.step.micro_batches = &micro_batches;
  run.context.step.seconds = 0.5;
  const std::string said = testing::stderr_of([&] {
    hook.before_train_iter(run.context);
    torch::mm(torch::ones({5, 5}), torch::ones({5, 4}));
    hook.after_train_iter(run.context);
  });
  EXPECT_NE(said.find("GFLOP/s: peak_flops"), std::string::npos) << said;
  EXPECT_EQ(logged(run.context), (std::map<std::string, double>{{"flops_per_step", 200},
                                                                {"mfu", 200 / 0.5 / 1000},
                                                                {"tokens_per_second", 6 * 5 / 0.5}}));  // of all ranks
}

}  // namespace
}  // namespace duet
