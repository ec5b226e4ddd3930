#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <tuple>
#include <vector>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "checkpoint/checkpoint.h"
#include "cli/registry.h"
#include "cli/run_cli.h"
#include "data/dataset.h"

// The program is told to end while a read hangs, as on a disk that is gone: it saves, leaves the read behind, and ends.

namespace duet {
namespace {

constexpr int kStopped = 75;

// Who reads the given sample sends the signal and never comes back.
class Hanging : public TensorDataset {
 public:
  explicit Hanging(int64_t at)
      : TensorDataset({{"input", at::rand({40, 2})}, {"target", at::zeros({40}, at::kLong)}}), at_(at) {}
  Batch get(const std::vector<int64_t>& indices) const override {
    if (std::find(indices.begin(), indices.end(), at_) != indices.end()) {
      std::raise(SIGTERM);
      std::promise<void>().get_future().wait();
    }
    return TensorDataset::get(indices);
  }
  bool in_memory() const override { return false; }

 private:
  int64_t at_;
};

[[noreturn]] void run_program(std::vector<std::string> words) {
  register_dataset("Hanging", [](ConfigNode& node) { return std::make_shared<Hanging>(node.read_int("at", -1, -1)); });
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  std::exit(run_cli(static_cast<int>(arguments.size()), arguments.data()));
}

class WaitsDeathTest : public ::testing::TestWithParam<std::tuple<std::string, int, std::string>> {};

TEST_P(WaitsDeathTest, AProgramThatWaitsForDataSavesAndEndsWhenItIsTold) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto& [mode, workers, part] = GetParam();
  // Named by the test: the process that ends is another one, which runs all of this again.
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("waits_" + mode + std::to_string(workers) + part);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string config = (folder / "run.yaml").string(), work_dir = (folder / "run").string();
  std::ofstream(config) << "model: {type: Mlp, in_features: 2, num_classes: 2}\n"
                           "data: {train: {type: Hanging, batch_size: 4}, val: {type: Hanging, batch_size: 4}}\n"
                           "trainer: {max_epochs: 2, val_interval: 5}\n"
                           "optim_wrapper: {optimizer: {type: SGD, lr: 0.01}}\n";
  EXPECT_EXIT(run_program({"duet", "train", config, "work_dir=" + work_dir, "mode=" + mode, "data." + part + ".at=15",
                           "data." + part + ".num_workers=" + std::to_string(workers)}),
              ::testing::ExitedWithCode(kStopped), "is left behind");
  EXPECT_TRUE(CheckpointStore(CheckpointStore::root_of(work_dir)).find_latest());
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(All, WaitsDeathTest,
                         ::testing::Values(std::tuple("eager", 0, "train"), std::tuple("graph", 2, "train"),
                                           std::tuple("graph", 0, "val"), std::tuple("eager", 2, "val")));

}  // namespace
}  // namespace duet
