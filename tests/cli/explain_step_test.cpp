#include <map>
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
#include "core/task.h"
#include "data/dataset.h"
#include "tests/cli/program_call.h"
#include "tests/support/temp_dir.h"

// What the program says of a config: its groups, schedules and hooks, and in graph mode of its first step.

namespace duet {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

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

const bool kHostReaderRegistered = [] {
  register_model("HostReader", [](ConfigNode& node, ModelContext&) {
    return std::make_unique<HostReader>(node.read_int("reads", 0, 0));
  });
  register_dataset("Threes",
                   [](ConfigNode&) { return std::make_shared<TensorDataset>(NamedTensors{{"x", at::ones({8, 3})}}); });
  return true;
}();

struct Explained {
  int code = 0;
  std::string output{};
  nlohmann::json json{}, graph{};
};

// `config`: of HostReader in graph mode if it is empty.
Explained run(const Words& command, const Words& overrides, std::string config = "") {
  const TempDir folder;
  const std::string json = folder / "out.json";
  if (config.empty()) {
    config =
        "model: {type: HostReader}\ntrainer: {max_steps: 3}\nmode: graph\ndevice: cpu\n"
        "data: {train: {type: Threes, batch_size: 2}}\n";
  }
  Words words = command;
  words.push_back(folder.write("c.yaml", config + "work_dir: " + (folder / "run") + "\n"));
  words.insert(words.end(), overrides.begin(), overrides.end());
  words.insert(words.end(), {"--json", json});
  const testing::Ran ran = testing::run_program(words);
  Explained explained{ran.code, ran.text, nlohmann::json::parse(read_bytes(json), nullptr, /*allow_exceptions=*/false)};
  if (explained.json.is_object() && explained.json.contains("graph")) explained.graph = explained.json["graph"];
  return explained;
}

TEST(ExplainCommand, ListsEveryObstacleAndIsNoFailure) {
  const Explained ran = run({"explain"}, {"model.reads=2"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_FALSE(ran.graph["captured"]);
  ASSERT_EQ(ran.graph["obstacles"].size(), 2U) << ran.graph;
  const auto& first = ran.graph["obstacles"][0];
  EXPECT_EQ(first["op"], "aten::_local_scalar_dense");
  EXPECT_EQ(first["times"], 1);
  EXPECT_THAT(first["where"].get<std::string>(), HasSubstr("'weight'"));
  EXPECT_THAT(first["way_out"].get<std::string>(), HasSubstr("keep it a tensor"));
  EXPECT_EQ(ran.graph["obstacles"][1]["op"], "aten::nonzero");
  EXPECT_THAT(ran.output, HasSubstr("the step is not captured, it runs op by op; obstacles: 2"));
}

TEST(ExplainCommand, WithStrictAnObstacleIsAFailure) {
  const Explained ran = run({"explain"}, {"model.reads=1", "graph.fallback=strict"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.graph["obstacles"].size(), 1U) << "the list is written all the same";
  EXPECT_EQ(run({"explain"}, {"graph.fallback=strict"}).code, 0);
}

TEST(ExplainCommand, ShowsWhatACapturedStepIsMadeOf) {
  const Explained ran = run({"explain"}, {"trainer.accumulate=2"});
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
  const Explained ran = run({"explain"}, {"mode=eager", "model.reads=1"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_FALSE(ran.graph.contains("captured"));
  const Explained without_data = run({"explain"}, {"data=null"});
  EXPECT_EQ(without_data.code, 0);
  EXPECT_THAT(without_data.graph["reason"].get<std::string>(), HasSubstr("no batch"));
}

TEST(ExplainCommand, GoesOnWhereTheDataCannotBeRead) {
  const Explained ran = run(
      {"explain"}, {"data.train={type: Csv, path: /nowhere.csv, target: y}",
                    "param_scheduler=[{type: Linear, end: 2}, {type: MultiStep, milestones: [1], by_epoch: true}]"});
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("data.train cannot be read"));
  EXPECT_EQ(ran.json["schedule"]["lr"].size(), 3U);
}

constexpr const char* kModel = "model: {type: SmallCnn, channels: [4, 8], num_classes: 3, image_size: 8}\n";

TEST(ExplainCommand, ListsGroupsAndSchedules) {
  const std::string config = kModel + std::string(R"(trainer: {max_steps: 40}
optim_wrapper:
  optimizer: {type: AdamW, lr: 0.5, weight_decay: 0.25}
  paramwise_cfg: {norm_decay_mult: 0.0, bias_decay_mult: 0.0, custom_keys: {head: {lr_mult: 2.0}, hed: {lr_mult: 3.0}}}
param_scheduler: [{type: Linear, start_factor: 0.5, end: 5}]
)");
  const Explained ran = run({"explain"}, {}, config);
  EXPECT_EQ(ran.code, 0) << ran.output;
  std::map<std::string, nlohmann::json> group_of;
  std::size_t head = 0, names = 0;
  for (std::size_t i = 0; i < ran.json["param_groups"].size(); ++i) {
    const nlohmann::json& group = ran.json["param_groups"][i];
    names += group["params"].size();
    for (const auto& name : group["params"]) group_of[name] = group;
    if (group["lr"] == 1.0) head = i;  // without the warm-up
  }
  EXPECT_EQ(group_of.size(), names) << "a parameter is in two groups";
  EXPECT_EQ(group_of["head.weight"]["lr"], 1.0);
  EXPECT_EQ(group_of["conv1.weight"]["lr"], 0.5);
  EXPECT_EQ(group_of["conv1.weight"]["weight_decay"], 0.25);
  EXPECT_EQ(group_of["norm1.bias"]["weight_decay"], 0.0);
  EXPECT_THAT(ran.output, HasSubstr("hed"));  // which fits no parameter
  const nlohmann::json& rates = ran.json["schedule"]["lr"];
  ASSERT_EQ(rates.size(), 40U);
  EXPECT_EQ(rates[0][head], 0.5);
  EXPECT_EQ(rates[4][head], 1.0);
  EXPECT_EQ(rates[39][head], 1.0);

  EXPECT_EQ(run({"explain"}, {"param_scheduler=null", "trainer.max_steps=3000"}, config).json["schedule"]["lr"].size(),
            2000U);
}

TEST(ExplainCommand, ListsHooksByPointWithReasons) {
  const std::string config = kModel + std::string(R"(trainer: {max_steps: 40}
default_hooks: {timer: null, sampler_seed: null, visualization: null, logger: {priority: 55}}
custom_hooks: [{type: EMAHook}, {type: EmptyCacheHook, priority: NORMAL}, {type: EarlyStoppingHook, monitor: loss}]
)");
  const Explained ran = run({"explain"}, {}, config);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("before_run\n    runtime_info  priority VERY_HIGH (10)\n"
                                    "    stop_signal   priority VERY_HIGH (10); added after runtime_info\n"
                                    "    logger        priority 55 instead of its own BELOW_NORMAL (60)\n"));
  const nlohmann::json &order = ran.json["hook_order"], &reasons = ran.json["hook_reasons"];
  EXPECT_EQ(order.size(), 35U);
  EXPECT_EQ(order["after_val_epoch"], Words({"ema", "empty_cache", "logger", "param_scheduler", "early_stopping"}));
  EXPECT_EQ(order["after_train_iter"], Words({"nan_guard", "logger", "checkpoint"}));
  EXPECT_EQ(order["in_step"], Words({"nan_guard", "ema"}));
  EXPECT_EQ(ran.graph["captured_hooks"], Words({"nan_guard", "ema"}));
  EXPECT_EQ(reasons["after_val_epoch"]["empty_cache"], "priority NORMAL (50); added after ema");
  EXPECT_EQ(run({"explain"}, {"default_hooks.logger.priority=HIGHEST", "custom_hooks.0.priority=95"}, config)
                .json["hook_order"]["after_val_epoch"],
            Words({"logger", "empty_cache", "param_scheduler", "ema", "early_stopping"}));
}

TEST(ExplainCommand, ADryRunSaysItBeforeTheFirstStep) {
  const Explained ran = run({"train", "--dry-run", "1"}, {"model.reads=2"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("obstacles: 2"));
  EXPECT_THAT(ran.output, HasSubstr("dry run: all parts work"));
  EXPECT_EQ(run({"train", "--dry-run", "1"}, {"model.reads=2", "graph.fallback=strict"}).code, 1);
  EXPECT_THAT(run({"train", "--dry-run", "1"}, {}).output, HasSubstr("the step is captured"));
}

}  // namespace
}  // namespace duet
