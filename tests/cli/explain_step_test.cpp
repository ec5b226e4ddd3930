#include <memory>
#include <string>
#include <vector>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "cli/registry.h"
#include "cli/run_cli.h"
#include "core/task.h"
#include "data/dataset.h"
#include "tests/support/temp_dir.h"

// What the program says of the first step of a config in graph mode: `duet explain` and `duet train --dry-run`.

namespace duet {
namespace {

using ::testing::HasSubstr;

// One weight; its loss is read to the host, and then its sign decides, in as many places as it is told.
class HostReader : public Task {
 public:
  explicit HostReader(int64_t reads) : reads_(reads) {}
  NamedTensors named_parameters() const override { return {{"weight", weight_}}; }
  NamedTensors named_buffers() const override { return {}; }
  void train(bool) override {}
  void to(at::Device) override {}
  StepOutput training_step(const Batch& batch) override {
    at::Tensor loss = (batch["x"] * weight_).square().mean();
    if (reads_ > 0) loss = loss * (1 + 0 * loss.item<double>());
    if (reads_ > 1) loss = loss + 0 * (batch["x"] > 0).nonzero().sum();
    return {loss, {}};
  }

 private:
  int64_t reads_;
  at::Tensor weight_ = at::ones({3}).requires_grad_(true);
};

void register_host_reader() {
  static const bool done = [] {
    register_model("HostReader", [](ConfigNode& node, ModelContext&) {
      return std::make_unique<HostReader>(node.read_int("reads", 0, 0));
    });
    register_dataset(
        "Threes", [](ConfigNode&) { return std::make_shared<TensorDataset>(NamedTensors{{"x", at::ones({8, 3})}}); });
    return true;
  }();
  static_cast<void>(done);
}

struct Ran {
  int code = 0;
  std::string output;
  nlohmann::json graph{};
};

Ran run(const std::vector<std::string>& command, const std::vector<std::string>& overrides) {
  register_host_reader();
  const TempDir folder;
  const std::string json = folder / "out.json";
  const std::string config =
      folder.write("c.yaml",
                   "model: {type: HostReader}\ntrainer: {max_steps: 3}\nmode: graph\ndevice: cpu\n"
                   "data: {train: {type: Threes, batch_size: 2}}\nwork_dir: " +
                       (folder / "run") + "\n");
  std::vector<std::string> words = {"duet"};
  words.insert(words.end(), command.begin(), command.end());
  words.push_back(config);
  words.insert(words.end(), overrides.begin(), overrides.end());
  words.insert(words.end(), {"--json", json});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::testing::internal::CaptureStdout();
  Ran ran;
  ran.code = run_cli(static_cast<int>(words.size()), arguments.data());
  ran.output = ::testing::internal::GetCapturedStdout();
  const auto written = nlohmann::json::parse(read_bytes(json), nullptr, /*allow_exceptions=*/false);
  if (written.is_object() && written.contains("graph")) ran.graph = written["graph"];
  return ran;
}

TEST(ExplainCommand, ListsEveryObstacleAndIsNoFailure) {
  const Ran ran = run({"explain"}, {"model.reads=2"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_FALSE(ran.graph["captured"]);
  ASSERT_EQ(ran.graph["obstacles"].size(), 2U) << ran.graph;
  const auto& first = ran.graph["obstacles"][0];
  EXPECT_EQ(first["op"], "aten::_local_scalar_dense");
  EXPECT_EQ(first["times"], 1);
  EXPECT_THAT(first["where"].get<std::string>(), HasSubstr("'weight'"));
  EXPECT_THAT(first["source"].get<std::string>(), HasSubstr("HostReader::training_step"));
  EXPECT_THAT(first["way_out"].get<std::string>(), HasSubstr("keep it a tensor"));
  EXPECT_EQ(ran.graph["obstacles"][1]["op"], "aten::nonzero");
  EXPECT_THAT(ran.output, HasSubstr("the step is not captured, it runs op by op; obstacles: 2"));
  EXPECT_THAT(ran.output, HasSubstr("code:  duet::HostReader::training_step"));
}

TEST(ExplainCommand, WithStrictAnObstacleIsAFailure) {
  const Ran ran = run({"explain"}, {"model.reads=1", "graph.fallback=strict"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.graph["obstacles"].size(), 1U) << "the list is written all the same";
  EXPECT_EQ(run({"explain"}, {"graph.fallback=strict"}).code, 0);
}

TEST(ExplainCommand, ShowsWhatACapturedStepIsMadeOf) {
  const Ran ran = run({"explain"}, {"trainer.accumulate=2"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_TRUE(ran.graph["captured"]) << ran.graph;
  EXPECT_EQ(ran.graph["reason"], "");
  EXPECT_GT(ran.graph["ops"]["recorded"], ran.graph["ops"]["instructions"]);
  EXPECT_GT(ran.graph["bytes"], 0);
  EXPECT_FALSE(ran.graph["hyper_parameters"].empty());
  for (const auto& number : ran.graph["hyper_parameters"]) EXPECT_NE(number["reach"], "frozen") << number;
  EXPECT_THAT(ran.output, HasSubstr("the step is captured"));
}

TEST(ExplainCommand, InEagerModeNothingIsTried) {
  const Ran ran = run({"explain"}, {"mode=eager", "model.reads=1"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_FALSE(ran.graph.contains("captured"));
}

TEST(ExplainCommand, ADryRunSaysItBeforeTheFirstStep) {
  const Ran ran = run({"train", "--dry-run", "1"}, {"model.reads=2"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("obstacles: 2"));
  EXPECT_THAT(ran.output, HasSubstr("dry run: all parts work"));
  EXPECT_EQ(run({"train", "--dry-run", "1"}, {"model.reads=2", "graph.fallback=strict"}).code, 1);
  EXPECT_THAT(run({"train", "--dry-run", "1"}, {}).output, HasSubstr("the step is captured"));
}

}  // namespace
}  // namespace duet
