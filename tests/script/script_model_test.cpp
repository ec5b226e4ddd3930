#include <filesystem>
#include <memory>
#include <string>
#include <vector>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "core/model_file.h"
#include "io/safetensors.h"
#include "tests/script/script_runs.h"
#include "tests/support/torch_reference.h"

namespace duet {
namespace {

using testing::adamw;
using testing::expect_replayed;
using testing::expect_same_bits;
using testing::make_trainer;
using testing::missing;
using testing::modes;
using testing::strict;

constexpr int64_t kSteps = 20;

// Models that make_script_models.py wrote, with their data and what PyTorch's Python made of them.

class ScriptModel : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(data_path())) {
      GTEST_SKIP() << missing(data_path());
    }
    at::set_num_threads(1);
    for (const auto& [name, tensor] : read_safetensors(data_path())) data_.set(name, tensor);
  }

  static std::string path_of(const std::string& file) { return testing::reference_path("script/" + file); }
  static std::string data_path() { return path_of(GetParam() + ".safetensors"); }

  static std::unique_ptr<Task> make_task() { return make_script_task({.path = path_of(GetParam() + ".pt")}); }

  Batch batch(int64_t step) const {
    const std::string index = std::to_string(step);
    return {{"input", data_.tensor("input." + index)}, {"target", data_.tensor("target." + index)}};
  }

  void seed() const { seed_all(data_.tensor("seed").item<int64_t>()); }

  std::vector<double> run(BaseTrainer& trainer) const {
    std::vector<double> losses;
    for (int64_t n = 0; n < kSteps; ++n) losses.push_back(trainer.step(batch(n)).loss.item<double>());
    return losses;
  }

  // Expects each loss within 1e-5 of Python's.
  void expect_losses(const std::string& name, const std::vector<double>& losses) {
    constexpr double tolerance = 1e-5;
    const at::Tensor expected = data_.tensor(name);
    ASSERT_EQ(expected.numel(), kSteps);
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[static_cast<int64_t>(i)].item<double>(), tolerance) << name << ", step " << i;
  }

  // Of a training in each mode: losses as in Python, the same bits.
  StateDict expect_both_modes(const TrainerOptions& options, const std::vector<std::string>& python) {
    std::vector<StateDict> states;
    for (const std::string& mode : modes()) {
      SCOPED_TRACE(mode);
      seed();
      const auto trainer = make_trainer(mode, make_task(), options, strict());
      const std::vector<double> losses = run(*trainer);
      for (const std::string& name : python) expect_losses(name, losses);
      if (mode == "graph") expect_replayed(*trainer, 17);
      states.push_back(trainer->state_dict());
    }
    expect_same_bits(states[0], states[1]);
    return states[0];
  }

  StateDict data_;
};

TEST_P(ScriptModel, TrainsAsInPythonInBothModes) {
  const StateDict found = expect_both_modes(adamw(), {"loss.module", "loss.script"}).part("model");
  const StateDict expected = data_.part("weight");
  ASSERT_EQ(expected.tensors().size(), found.tensors().size());
  for (const auto& [name, tensor] : expected.tensors()) {
    const at::Tensor distance = (found.tensor(name).to(at::kDouble) - tensor.to(at::kDouble)).abs().max();
    EXPECT_LE(distance.item<double>(), 1e-4) << name;
  }
}

TEST_P(ScriptModel, TrainsAsInPythonUnderBf16InBothModes) {
  if (!data_.tensors().contains("loss.bf16")) {
    GTEST_SKIP() << "oneDNN has no bf16 kernel for this model on this CPU, in Python either";
  }
  TrainerOptions options = adamw();
  options.amp = at::kBFloat16;
  expect_both_modes(options, {"loss.bf16"});
}

INSTANTIATE_TEST_SUITE_P(Files, ScriptModel, ::testing::Values("resnet", "vit"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace duet
