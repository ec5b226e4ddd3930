#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "core/model_file.h"
#include "io/pt2_file.h"
#include "tests/support/exported_reference.h"
#include "tests/support/torch_reference.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using testing::expect_same_bits;
using testing::make_trainer;
using testing::same_bits;

std::string folder_of(const std::string& name) { return testing::reference_path("exported/" + name); }

// Models that make_exported_models.py wrote, by name and mode.
class ExportedModels : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    const std::string folder = folder_of(name());
    if (!std::filesystem::exists(folder + "/run.json"))
      GTEST_SKIP() << "there is no " << folder << "; see tests/exported";
    at::set_num_threads(1);
    reference_ = std::make_unique<ExportedReference>(folder);
  }

  static const std::string& name() { return std::get<0>(GetParam()); }
  static const std::string& mode() { return std::get<1>(GetParam()); }
  static std::string other_mode() { return mode() == "graph" ? "eager" : "graph"; }

  std::unique_ptr<BaseTrainer> trainer(const std::string& mode, ExportedTaskOptions options) const {
    const TrainerOptions trainer{.optimizer = AdamW{.lr = reference_->run["lr"]}};
    seed_all(reference_->run["seed"].get<uint64_t>());
    // Whoever branches on values reads them back.
    const GraphOptions graph{.fallback = name() == "branches" ? Fallback::kAuto : Fallback::kStrict};
    return make_trainer(mode, make_exported_task(options), trainer, graph);
  }

  void train(BaseTrainer& trainer, std::size_t begin, std::size_t end) const {
    for (std::size_t step = begin; step < end; ++step) {
      EXPECT_EQ(trainer.step(reference_->batches[step]).loss.item<float>(), reference_->losses[step])
          << "step " << step;
    }
  }
  std::size_t steps() const { return reference_->batches.size(); }

  void expect_python_weights(const StateDict& found) const {
    for (const auto& [name, tensor] : found.tensors()) {
      EXPECT_TRUE(same_bits(tensor, reference_->weights.tensor(name))) << name;
    }
    EXPECT_FALSE(found.tensors().empty());
  }

  std::unique_ptr<ExportedReference> reference_;
};

TEST_P(ExportedModels, GoOnInTheOtherMode) {
  const std::size_t half = steps() / 2;
  const auto first = trainer(mode(), reference_->options());
  train(*first, 0, half);
  const StateDict state = first->state_dict();
  const auto second = trainer(other_mode(), reference_->options());
  second->load_state_dict(state);
  train(*second, half, steps());
  expect_python_weights(second->weights());
}

// By the ops' own flags, and by a second program.
TEST_P(ExportedModels, TrainWithTheBitsOfPyTorchsLoopAndPredictAsAfterEval) {
  for (const bool has_second : {false, true}) {
    SCOPED_TRACE(has_second);
    ExportedTaskOptions options = reference_->options();
    if (has_second) options.eval_path = folder_of(name()) + "/eval.pt2";
    const auto run = trainer(mode(), options);
    train(*run, 0, steps());
    const StateDict expected = read_weights({.path = folder_of(name()) + "/output.pt"});
    for (int time = 0; time < 4; ++time) {  // op by op, recorded, replayed
      const Batch output = run->predict(reference_->batches[0]);
      ASSERT_EQ(output.items().size(), 1U);
      EXPECT_TRUE(same_bits(output["prediction"], expected.tensor("output")));
    }
    expect_python_weights(run->weights());
  }
}

// The file goes on where the training ended, also as the file of the next one.
TEST_P(ExportedModels, AreWrittenBackWithTheirWeights) {
  const std::string path = folder_of(name()) + "/back-" + mode() + ".pt2";  // load_back.py opens it in Python
  const auto run = trainer(mode(), reference_->options());
  train(*run, 0, steps());
  write_exported_model(path, reference_->path, run->weights());
  ExportedTaskOptions options = reference_->options();
  options.path = path;
  const auto next = trainer(mode(), options);
  expect_same_bits(run->weights(), next->weights());
  EXPECT_EQ(read_pt2(path).program, read_pt2(reference_->path).program);
}

INSTANTIATE_TEST_SUITE_P(Modes, ExportedModels,
                         ::testing::Combine(::testing::Values("convolutions", "encoder", "branches", "language",
                                                              "oddities"),
                                            ::testing::Values("eager", "graph")),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace duet
