#include "distributed/detail/sync_batch_norm.h"
#include <filesystem>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "core/model_file.h"
#include "core/task.h"
#include "hooks/precise_bn_hook.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/modes.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/torch_reference.h"
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

Tensor loss_of(Normalized& model, const Batch& batch) {
  return torch::nn::functional::cross_entropy(model.forward(batch["input"]), batch["target"]);
}

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
  const auto trainer = testing::make_trainer(mode, make_task(std::make_shared<Normalized>(), loss_of), options);
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
  expect_error_on_all(results, 2, "different numbers of micro-batches for step 5");
}

// Seven samples, four and three on two ranks: the statistics after each of four steps, and at last the weights.
NamedTensors train_file(const Ranks& ranks, const std::string& mode, std::unique_ptr<Task> task, int64_t channels) {
  seed_all(1);
  TrainerOptions options;
  options.optimizer = SGD{.lr = 0.01};
  options.loop.max_steps = 4;
  options.distributed = {.communicator = ranks, .sync_batchnorm = true};
  const auto trainer = testing::make_trainer(mode, std::move(task), options);
  NamedTensors result;
  trainer->on(HookPoint::kAfterTrainIter, [&](TrainContext& at) {
    for (const auto& [name, buffer] : at.task.named_buffers())
      result.emplace_back(std::to_string(at.progress.step) + "." + name, buffer.clone());
  });
  torch::manual_seed(5);
  const Tensor images = torch::randn({7, channels, 8, 8}) + torch::arange(7).view({7, 1, 1, 1});
  trainer->train(*share_of({{"x", images}, {"target", torch::arange(7) % 5}}, 8, ranks.get(), /*shuffle=*/false));
  for (auto& item : weights_of(*trainer)) result.push_back(std::move(item));
  return result;
}

TEST_P(SyncBatchNorms, OfATorchScriptModelAreThoseOfOneProcess) {
  const std::string path = reference_path("script/resnet.pt");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << no_reference(path, "script/make_script_models.py");
  const auto run = [&](int64_t world) {
    return run_ranks(
        world, [&](const Ranks& ranks) { return train_file(ranks, mode(), make_script_task({.path = path}), 3); });
  };
  const auto one = run(1), two = run(2);
  expect_no_error(one);
  expect_same_on_all(two);
  if (HasFailure()) return;
  EXPECT_LE(largest_difference(one[0], two[0]), 1e-3);  // float32, through six layers
}

// Its dropout differs from rank to rank, behind the layer.
TEST_P(SyncBatchNorms, OfAnExportedModelAreThoseOfOneProcess) {
  const std::string path = reference_path("exported/convolutions/model.pt2");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << no_reference(path, "exported/make_exported_models.py");
  const auto run = [&](int64_t world) {
    return run_ranks(
        world, [&](const Ranks& ranks) { return train_file(ranks, mode(), make_exported_task({.path = path}), 1); });
  };
  const auto one = run(1), two = run(2);
  expect_no_error(one);
  expect_same_on_all(two);
  if (HasFailure()) return;
  for (const char* name : {"1.norm.running_mean", "1.norm.running_var"})
    EXPECT_TRUE(torch::allclose(one[0].at(name), two[0].at(name), 1e-5, 1e-6)) << name;
}

TEST_P(SyncBatchNorms, PreciseStatisticsAreThoseOfOneProcess) {
  const auto run = [&](int64_t world) {
    return run_ranks(world, [&](const Ranks& ranks) {
      TrainerOptions options;
      options.distributed = {.communicator = ranks};
      seed_all(1);
      const auto trainer = testing::make_trainer(mode(), make_task(std::make_shared<Normalized>(), loss_of), options);
      const auto data = [&] { return share_of(samples(), 8, ranks.get(), /*shuffle=*/false); };
      trainer->add_hook(std::make_unique<PreciseBNHook>(data()));
      trainer->validate(*data());
      return weights_of(*trainer);
    });
  };
  const auto one = run(1), two = run(2);
  expect_no_error(one);
  expect_same_on_all(two);
  if (HasFailure()) return;
  EXPECT_LE((one[0].at("norm.running_mean") - two[0].at("norm.running_mean")).abs().max().item<double>(), 1e-12);
  EXPECT_LE((one[0].at("norm.running_var") - two[0].at("norm.running_var")).abs().max().item<double>(), 1e-12);
}

// A training step moves a running mean a tenth of the way to the mean of its batch.
TEST_P(SyncBatchNorms, PreciseMeansOfAModelFromAFileAreThoseOfTheBatch) {
  const std::string script = reference_path("script/resnet.pt"),
                    exported = reference_path("exported/convolutions/model.pt2");
  if (!std::filesystem::exists(script) || !std::filesystem::exists(exported)) GTEST_SKIP() << "no models";
  const auto weights_after = [&](const std::string& path, const std::string& what) {
    return run_ranks(1, [&](const Ranks& ranks) {
      TrainerOptions options;
      options.optimizer = SGD{.lr = 0.01};
      options.loop.max_steps = 1;
      options.distributed = {.communicator = ranks};
      auto task = path == script ? make_script_task({.path = path}) : make_exported_task({.path = path});
      const auto trainer = testing::make_trainer(mode(), std::move(task), options);
      torch::manual_seed(5);
      const Tensor images = torch::randn({8, path == script ? 3 : 1, 8, 8}) + 1;
      const NamedTensors samples = {{"x", images}, {"target", torch::arange(8) % 5}};
      const auto data = [&] { return share_of(samples, 8, ranks.get(), /*shuffle=*/false); };
      if (what == "precise") {
        trainer->add_hook(std::make_unique<PreciseBNHook>(data()));
        trainer->validate(*data());
      }
      if (what == "trained") trainer->train(*data());
      return weights_of(*trainer);
    })[0];
  };
  for (const auto& [path, layers] : {std::pair(script, std::size_t{2}), {exported, std::size_t{1}}}) {
    const RankResult before = weights_after(path, ""), precise = weights_after(path, "precise"),
                     trained = weights_after(path, "trained");
    ASSERT_EQ(precise.error + trained.error, "") << path;
    std::size_t means = 0;
    for (const auto& [name, mean] : precise.tensors) {
      if (!name.ends_with("running_mean")) continue;
      const Tensor expected = (trained.at(name) - 0.9 * before.at(name)) / 0.1;
      EXPECT_TRUE(torch::allclose(mean, expected, 1e-3, 1e-4)) << path << " " << name;
      ++means;
    }
    EXPECT_GE(means, layers) << path;
  }
}

// This rank's part of torch.nn.SyncBatchNorm by its documented formula, in float64, with another rank whose batch is
// `other`: what sums are the other's moments, and its parts of the two sums of backward. One without a value takes
// part.
TEST(SyncBatchNorm, IsTorchsByItsFormula) {
  const std::vector<int64_t> kOthers = {0, 2};
  torch::manual_seed(3);
  for (const auto& [count, is_affine] : {std::pair(3, true), {3, false}, {0, true}}) {
    const Tensor own = (torch::randn({count, 5, 4}, torch::kDouble) * 2 + 100).requires_grad_(true);
    const Tensor other = torch::randn({2, 5, 4}, torch::kDouble) - 1;
    const Tensor whole = torch::cat({own.detach(), other}).requires_grad_(true);
    Tensor weight, bias;
    if (is_affine) {
      weight = torch::rand({5}, torch::kDouble).requires_grad_(true);
      bias = torch::rand({5}, torch::kDouble).requires_grad_(true);
    }
    const Tensor mean = torch::rand({5}, torch::kDouble), var = torch::rand({5}, torch::kDouble);
    const Tensor whole_mean = mean.clone(), whole_var = var.clone();
    const Tensor factors = torch::randn({count + 2, 5, 4}, torch::kDouble);

    const Tensor expected = torch::batch_norm(whole, weight, bias, whole_mean, whole_var, true, 0.2, 1e-5, false);
    const Tensor grads = torch::autograd::grad({(expected * factors).sum()}, {whole})[0];

    const auto units_of = [&](const Tensor& values) {
      return (values - whole.detach().mean(kOthers, true)) /
             (whole.detach().var(kOthers, /*unbiased=*/false, /*keepdim=*/true) + 1e-5).sqrt();
    };
    FakeCommunicator ranks(0, 2, [&](const Tensor& values) {
      if (ranks.sums == 1) {
        values.add_(moments_of(other));
      } else {
        const Tensor gradient = factors.narrow(0, count, 2);
        values.add_(torch::stack({(gradient * units_of(other)).sum(kOthers), gradient.sum(kOthers)}));
      }
    });
    const SyncBatchNorm sync(ranks);
    const Tensor found = torch::batch_norm(own, weight, bias, mean, var, true, 0.2, 1e-5, false);
    std::vector<Tensor> inputs = {own};
    if (is_affine) inputs.insert(inputs.end(), {weight, bias});
    const Tensor own_factors = factors.narrow(0, 0, count);
    const auto found_grads = torch::autograd::grad({(found * own_factors).sum()}, inputs);
    EXPECT_TRUE(torch::allclose(found, expected.narrow(0, 0, count), 0, 1e-10));
    EXPECT_TRUE(torch::allclose(mean, whole_mean, 0, 1e-12));
    EXPECT_TRUE(torch::allclose(var, whole_var, 1e-12, 1e-12));
    EXPECT_TRUE(torch::allclose(found_grads[0], grads.narrow(0, 0, count), 0, 1e-10));
    EXPECT_EQ(ranks.sums, 2);
    if (!is_affine) continue;  // of this rank's samples alone: the trainer sums them
    EXPECT_TRUE(torch::allclose(found_grads[1], (units_of(own.detach()) * own_factors).sum(kOthers), 0, 1e-9));
    EXPECT_TRUE(torch::allclose(found_grads[2], own_factors.sum(kOthers), 0, 1e-9));
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
