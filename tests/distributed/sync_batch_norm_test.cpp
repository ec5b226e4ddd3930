#include "distributed/detail/sync_batch_norm.h"
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/task.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/modes.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

// Batch norm over all ranks: that of one process with the whole batch, in both modes.

namespace duet {
namespace {

using namespace testing;

using at::Tensor;

struct Normalized : torch::nn::Module {
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 6, 3).padding(1)};
  torch::nn::BatchNorm2d norm{6}, plain{torch::nn::BatchNorm2dOptions(6).affine(false).track_running_stats(false)};
  torch::nn::InstanceNorm2d instance{6};
  torch::nn::Linear head{6, 4};
  torch::nn::BatchNorm1d last{4};
  Normalized() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("plain", plain);
    register_module("instance", instance);
    register_module("head", head);
    register_module("last", last);
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = torch::gelu(plain(torch::gelu(norm(conv(x)))));
    const Tensor z = head((y + instance(y)).square().mean({2, 3}));
    return last(z.repeat({2, 1})).narrow(0, 0, z.size(0));  // the layer itself refuses a single row
  }
};

NamedTensors samples() {
  torch::manual_seed(5);
  const Tensor images = torch::randn({47, 3, 5, 5}, torch::kDouble) * 3 + torch::arange(47).view({47, 1, 1, 1}) / 10;
  return {{"input", images}, {"target", torch::arange(47) % 4}};
}

NamedTensors train(const Ranks& ranks, const std::string& mode, bool syncs, bool drops_last = false) {
  seed_all(1);
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
  options.loop.max_steps = 18;
  options.distributed = {.communicator = ranks, .sync_batchnorm = syncs};
  const auto task = [] {
    return make_task(std::make_shared<Normalized>(), [](Normalized& model, const Batch& batch) {
      return torch::nn::functional::cross_entropy(model.forward(batch["input"]), batch["target"]);
    });
  };
  const auto trainer = testing::make_trainer(mode, task(), options);
  NamedTensors data = samples();
  if (drops_last) {
    for (auto& item : data) item.second = item.second.narrow(0, 0, 41);
  }
  trainer->train(*share_of(data, 8, ranks.get()));
  NamedTensors result = weights_of(*trainer);
  result.emplace_back("the loss", trainer->result().loss);
  return result;
}

class SyncBatchNorms : public InBothModes {};
DUET_IN_BOTH_MODES(SyncBatchNorms);

// The epoch's last batch has 7 samples: on two ranks 4 and 3, on four 2, 2, 2 and 1.
TEST_P(SyncBatchNorms, UnevenRanksAreOneProcessWithTheWholeBatch) {
  const auto run = [&](int64_t world, bool syncs) {
    return run_ranks(world, [&](const Ranks& ranks) { return train(ranks, mode(), syncs); });
  };
  const auto one = run(1, true);
  expect_no_error(one);
  for (const int64_t world : {2, 4}) {
    const auto many = run(world, true);
    expect_same_on_all(many);
    if (HasFailure()) return;
    EXPECT_LE(largest_difference(one[0], many[0]), 1e-6);  // the factors of the loss, 4/7 and 3/7, are float32
  }
  const auto apart = run(2, false);
  EXPECT_GT(largest_difference(one[0], apart[0]), 1e-3);  // so it was not nothing
}

TEST(SyncBatchNorm, ModesGiveTheSameBits) {
  std::vector<RankResult> all;
  for (const char* mode : {"eager", "graph"}) {
    all.push_back(run_ranks(2, [&](const Ranks& ranks) { return train(ranks, mode, true); })[0]);
    EXPECT_EQ(all.back().error, "");
  }
  if (HasFailure()) return;
  for (const auto& [name, tensor] : all[0].tensors) EXPECT_TRUE(same_bits(tensor, all[1].at(name))) << name;
}

// 41 samples: the last batch has one, on rank 0.
TEST_P(SyncBatchNorms, ARankWithoutAMicroBatchIsRefused) {
  const auto results = run_ranks(2, [&](const Ranks& ranks) { return train(ranks, mode(), true, true); });
  expect_error_on_all(results, 2, "rank 1 has another number of micro-batches for step 5 than rank 0");
}

// This rank's part of torch.nn.SyncBatchNorm by its documented formula, in float64, with another rank whose batch is
// `other`: what sums is the other's row, and its parts of the two sums of backward.
TEST(SyncBatchNorm, IsTorchsByItsFormula) {
  const std::vector<int64_t> kOthers = {0, 2};
  torch::manual_seed(3);
  for (const bool is_affine : {true, false}) {
    const Tensor own = (torch::randn({3, 5, 4}, torch::kDouble) * 2 + 100).requires_grad_(true);
    const Tensor other = torch::randn({2, 5, 4}, torch::kDouble) - 1;
    const Tensor whole = torch::cat({own.detach(), other}).requires_grad_(true);
    Tensor weight, bias;
    if (is_affine) {
      weight = torch::rand({5}, torch::kDouble).requires_grad_(true);
      bias = torch::rand({5}, torch::kDouble).requires_grad_(true);
    }
    const Tensor mean = torch::rand({5}, torch::kDouble), var = torch::rand({5}, torch::kDouble);
    const Tensor whole_mean = mean.clone(), whole_var = var.clone();
    const Tensor factors = torch::randn({5, 5, 4}, torch::kDouble);

    const Tensor expected = torch::batch_norm(whole, weight, bias, whole_mean, whole_var, true, 0.2, 1e-5, false);
    const Tensor grads = torch::autograd::grad({(expected * factors).sum()}, {whole})[0];

    const Tensor centred = other - whole.detach().mean(kOthers, true), gradient = factors.narrow(0, 3, 2);
    FakeCommunicator ranks(0, 2, [&](const Tensor& values) {
      if (values.dim() == 2) {
        const auto [v, m] = torch::var_mean(other, kOthers, /*unbiased=*/false);
        values[1].copy_(torch::cat({m, v, torch::full({1}, 8, torch::kDouble)}));
      } else {
        values.add_(torch::cat({gradient.sum(kOthers), (gradient * centred).sum(kOthers)}));
      }
    });
    const SyncBatchNorm sync(ranks);
    const Tensor found = torch::batch_norm(own, weight, bias, mean, var, true, 0.2, 1e-5, false);
    std::vector<Tensor> inputs = {own};
    if (is_affine) inputs.insert(inputs.end(), {weight, bias});
    const auto found_grads = torch::autograd::grad({(found * factors.narrow(0, 0, 3)).sum()}, inputs);
    EXPECT_TRUE(torch::allclose(found, expected.narrow(0, 0, 3), 0, 1e-10));
    EXPECT_TRUE(torch::allclose(mean, whole_mean, 0, 1e-12));
    EXPECT_TRUE(torch::allclose(var, whole_var, 1e-12, 1e-12));
    EXPECT_TRUE(torch::allclose(found_grads[0], grads.narrow(0, 0, 3), 0, 1e-10));
    EXPECT_EQ(ranks.sums, 2);
    if (!is_affine) continue;  // of this rank's samples alone: the trainer sums them
    const Tensor units = (own.detach() - whole.detach().mean(kOthers, true)) /
                         (whole.detach().var(kOthers, /*unbiased=*/false, /*keepdim=*/true) + 1e-5).sqrt();
    EXPECT_TRUE(torch::allclose(found_grads[1], (units * factors.narrow(0, 0, 3)).sum(kOthers), 0, 1e-9));
    EXPECT_TRUE(torch::allclose(found_grads[2], factors.narrow(0, 0, 3).sum(kOthers), 0, 1e-9));
  }
}

TEST(SyncBatchNorm, LeavesEvaluationAndOtherNormsAndRefusesWhatItDoesNotKnow) {
  FakeCommunicator ranks(0, 2);
  const Tensor x = torch::randn({4, 3, 2, 2}), mean = torch::zeros({3}), var = torch::ones({3});
  const auto calls = [&] {
    torch::batch_norm(x, {}, {}, mean, var, false, 0.1, 1e-5, false);
    torch::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
    torch::native_batch_norm(x, {}, {}, mean, var, false, 0.1, 1e-5);
  };
  const SyncBatchNorm sync(ranks);
  calls();
  EXPECT_EQ(ranks.sums, 0);
  expect_error<ConfigError>([&] { torch::native_batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5); },
                            {"[SyncBatchNorm]", "aten::native_batch_norm", "without decompositions"});
  EXPECT_EQ(ranks.sums, 0);
  const auto script = torch::jit::compile(R"(
    def normalized(x, mean, var):
      return torch.batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, False)
  )");
  script->run_method("normalized", x, mean, var);
  EXPECT_EQ(ranks.sums, 1);
}

}  // namespace
}  // namespace duet
