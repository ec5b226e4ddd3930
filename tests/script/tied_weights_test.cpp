#include <map>
#include <memory>
#include <string>
#include <vector>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include "base/error.h"
#include "checkpoint/weights_file.h"
#include "core/model_file.h"
#include "core/task.h"
#include "io/pt_file.h"
#include "io/safetensors.h"
#include "tests/script/script_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using testing::adamw;
using testing::make_trainer;
using testing::same_bits;

std::vector<std::string> names_of(const NamedTensors& items) {
  std::vector<std::string> names;
  for (const auto& item : items) names.push_back(item.first);
  return names;
}

// A scripted model whose output is one tensor with its input, "head.weight" and "embedding.weight", and with a buffer
// that has two names too.
class TiedWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    const at::Tensor tied = at::linspace(-1, 1, 16).view({4, 4}).clone().set_requires_grad(true);
    const at::Tensor scale = at::full({4}, 0.5F);
    torch::jit::Module module("__torch__.Model");
    module.register_module("embedding", layer("Embedding", tied, scale));
    module.register_module("head", layer("Head", tied, scale));
    module.define(
        "def forward(self, x):\n"
        "  return (x.matmul(self.embedding.weight) * self.head.scale).tanh().matmul(self.head.weight.t())\n");
    module.save(model_);
  }

  static torch::jit::Module layer(const std::string& name, const at::Tensor& weight, const at::Tensor& scale) {
    torch::jit::Module module("__torch__." + name);
    module.register_parameter("weight", weight, /*is_buffer=*/false);
    module.register_parameter("scale", scale, /*is_buffer=*/true);
    return module;
  }

  std::unique_ptr<Task> task() const { return make_script_task({.path = model_}); }
  TempDir folder_;
  std::string model_ = folder_ / "model.pt";
};

TEST_F(TiedWeights, AreNamedOnceByTheFirstOfTheirNames) {
  const auto model = task();
  EXPECT_EQ(names_of(model->named_parameters()), std::vector<std::string>{"embedding.weight"});
  EXPECT_EQ(names_of(model->named_buffers()), std::vector<std::string>{"embedding.scale"});
  const std::map<std::string, std::string> further = {{"head.weight", "embedding.weight"},
                                                      {"head.scale", "embedding.scale"}};
  EXPECT_EQ(model->tied_names(), further);
}

TEST_F(TiedWeights, AreExportedAsPythonWritesThem) {
  const auto trained = make_trainer("eager", task(), adamw());
  const at::Tensor x = at::arange(20, at::kFloat).sin().view({5, 4});
  for (int n = 0; n < 3; ++n) trained->step(Batch{{"x", x}, {"target", at::arange(5).remainder(3)}});
  const at::Tensor weight = trained->weights().tensor("embedding.weight");
  const StateDict weights = read_weights({trained->save(folder_ / "run")});
  EXPECT_EQ(aliases_of(weights), (std::map<std::string, std::string>{{"head.scale", "embedding.scale"},
                                                                     {"head.weight", "embedding.weight"}}));
  write_weights(folder_ / "a.pt", weights);
  write_weights(folder_ / "a.safetensors", weights);

  // torch.save(state_dict): under both names, in one storage.
  const StateDict pt = read_pt(folder_ / "a.pt").state;
  EXPECT_EQ(pt.tensors().size(), 4U);
  EXPECT_TRUE(same_bits(pt.tensor("head.weight"), weight));
  EXPECT_EQ(pt.tensor("head.weight").const_data_ptr(), pt.tensor("embedding.weight").const_data_ptr());
  // safetensors' save_model: once.
  EXPECT_EQ(names_of(read_safetensors(folder_ / "a.safetensors")),
            (std::vector<std::string>{"embedding.scale", "embedding.weight"}));

  for (const char* file : {"a.pt", "a.safetensors"}) {
    const auto model = task();
    EXPECT_TRUE(load_matching_weights(*model, read_weights({folder_ / file}), /*strict=*/true).exact()) << file;
    EXPECT_TRUE(same_bits(model->named_parameters()[0].second, weight)) << file;
  }
}

class TiedFiles : public TiedWeights {
 protected:
  // Weights of 9 and scales of 2 under these names.
  static StateDict named(const std::vector<std::string>& names) {
    StateDict weights;
    for (const std::string& name : names) {
      weights.set(name, name.ends_with("weight") ? at::full({4, 4}, 9.0F) : at::full({4}, 2.0F));
    }
    return weights;
  }
};

TEST_F(TiedFiles, AreTakenUnderAnyOfTheNames) {
  for (const StateDict& weights : {named({"embedding.weight", "embedding.scale"}), named({"head.weight", "head.scale"}),
                                   named({"head.weight", "embedding.scale"}),
                                   named({"embedding.weight", "embedding.scale", "head.weight", "head.scale"})}) {
    const auto model = task();
    const WeightsReport report = load_matching_weights(*model, weights, /*strict=*/true);
    EXPECT_EQ(report.loaded, 2);
    EXPECT_EQ(model->named_parameters()[0].second.min().item<float>(), 9.0F);
    EXPECT_EQ(model->named_buffers()[0].second.min().item<float>(), 2.0F);
  }
}

TEST_F(TiedFiles, StayStrictAboutOtherNamesAndOtherValues) {
  const auto model = task();
  expect_error<CheckpointError>(
      [&] { load_matching_weights(*model, named({"head.weight", "head.scale", "tail.weight"}), /*strict=*/true); },
      {"unknown to the model: tail.weight"});
  expect_error<CheckpointError>([&] { load_matching_weights(*model, named({"head.scale"}), /*strict=*/true); },
                                {"missing there: embedding.weight"});
  StateDict apart = named({"embedding.weight", "embedding.scale", "head.weight"});
  apart.set("head.weight", at::full({4, 4}, 8.0F));
  expect_error<CheckpointError>([&] { load_matching_weights(*model, apart, /*strict=*/true); },
                                {"tied in the model, but another value there, not loaded: head.weight"});
  EXPECT_EQ(load_matching_weights(*model, apart).untied, std::vector<std::string>{"head.weight"});
  EXPECT_EQ(model->named_parameters()[0].second.min().item<float>(), 9.0F);
}

}  // namespace
}  // namespace duet
