#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include "base/device.h"
#include "core/model_file.h"
#include "io/safetensors.h"
#include "optim/groups/param_group.h"
#include "tests/script/script_runs.h"
#include "tests/support/torch_reference.h"

namespace duet {
namespace {

using testing::adamw;
using testing::expect_replayed;
using testing::expect_same_bits;
using testing::missing;
using testing::modes;
using testing::same_bits;

// A TorchScript file as a part of a model: of a Net with its own head.

struct Net : torch::nn::Module {
  explicit Net(const std::string& path) : backbone(path) { register_module("backbone", backbone.module()); }
  at::Tensor forward(const at::Tensor& input) { return head->forward(backbone.forward(input)); }

  ScriptModule backbone;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(10, 3));
};

class ScriptBackbone : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(path_)) GTEST_SKIP() << missing(path_);
    input_ = read_input();
  }

  static at::Tensor read_input() {
    for (const auto& [name, tensor] : read_safetensors(testing::reference_path("script/resnet.safetensors"))) {
      if (name == "input.0") return tensor;
    }
    return {};
  }

  Batch batch() const { return {{"image", input_}, {"target", at::arange(input_.size(0)).remainder(3)}}; }

  std::unique_ptr<BaseTrainer> trainer(const std::string& mode, TrainerOptions options) {
    seed_all(4);
    net_ = std::make_shared<Net>(path_);
    auto task = make_task(
        net_, [](Net& net, const Batch& batch) { return net.forward(batch["image"]); },
        [](const at::Tensor& logits, const Batch& batch) { return at::cross_entropy_loss(logits, batch["target"]); });
    return testing::make_trainer(mode, std::move(task), std::move(options));
  }

  const std::string path_ = testing::reference_path("script/resnet.pt");
  at::Tensor input_;
  std::shared_ptr<Net> net_;
};

TEST_F(ScriptBackbone, IsTrainedWithItsHeadAndTheSameBitsInBothModes) {
  StateDict weights;
  for (const std::string& mode : modes()) {
    const auto run = trainer(mode, adamw());
    const StateDict before = run->weights();
    const std::string name = before.tensors().begin()->first;
    EXPECT_TRUE(name.starts_with("backbone.")) << name;
    const at::Tensor first = before.tensor(name).clone();
    for (int n = 0; n < 12; ++n) run->step(batch());
    EXPECT_FALSE(same_bits(first, run->weights().tensor(name)));
    if (mode == "eager") weights = run->weights();
    if (mode == "graph") {
      expect_replayed(*run, 8);
      expect_same_bits(weights, run->weights());
    }
  }
}

// As the rules for parameter groups find them in a model of C++ layers.
TEST_F(ScriptBackbone, ShowsItsNormsToTheRulesForParameterGroups) {
  const auto run = trainer("eager", adamw());
  ParamwiseOptions options;
  options.norm_decay_mult = 0;
  const ParamGroups groups = paramwise_groups(run->task(), AdamW{.weight_decay = 0.1}, options);
  ASSERT_EQ(groups.size(), 2U);
  std::map<std::string, bool> decayed;
  for (const ParamGroup& group : groups) {
    const auto decay = group.numbers.find("weight_decay");
    for (const auto& [name, tensor] : group.parameters)
      decayed[name] = decay == group.numbers.end() || decay->second > 0;
  }
  EXPECT_EQ(decayed.size(), run->task().named_parameters().size());
  for (const char* norm : {"backbone.bn1.weight", "backbone.bn1.bias", "backbone.layer1.0.bn2.weight"}) {
    EXPECT_FALSE(decayed.at(norm)) << norm;
  }
  for (const char* other : {"backbone.conv1.weight", "backbone.layer1.0.conv2.weight", "head.weight", "head.bias"}) {
    EXPECT_TRUE(decayed.at(other)) << other;
  }
}

TEST_F(ScriptBackbone, HandsTrainingFlagsOn) {
  Net net(path_);
  for (const bool on : {false, true}) {
    net.train(on);
    const at::Tensor before = net.backbone.module()->buffers().front().clone();  // BatchNorm's running mean
    net.backbone.forward(input_);
    EXPECT_EQ(same_bits(before, net.backbone.module()->buffers().front()), !on);
  }
}

}  // namespace
}  // namespace duet
