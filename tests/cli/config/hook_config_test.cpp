#include <algorithm>
#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/build.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "hooks/default_hooks.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using Names = std::vector<std::string>;

constexpr const char* kRun =
    "model: {type: Gpt, n_layer: 1, n_embd: 8, n_head: 1}\n"
    "data: {train: {type: Text, batch_size: 4}, val: {type: Text, split: val, batch_size: 4}}\n"
    "trainer: {max_steps: 20}\n";

// A run with these hooks, ready to train.
duet::Run build(const std::string& hooks, const std::vector<std::string>& overrides = {}) {
  ConfigNode root = ConfigNode::parse_text(std::string(kRun) + hooks + "\n", "c.yaml");
  for (const std::string& word : overrides) root.override_with(word);
  const RunConfig config = parse_run_config(root, "c");
  duet::Run run = build_training(config);
  add_hooks(config, run);
  return run;
}

Names order(const std::string& hooks) { return build(hooks).trainer->hooks().order(); }

const Names kDefault = {"runtime_info",  "nan_guard", "timer",           "sampler_seed",
                        "visualization", "logger",    "param_scheduler", "checkpoint"};

// A user's hook. Its points and the text it was configured with are looked at from outside.
class OwnHook : public Hook {
 public:
  explicit OwnHook(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  int priority() const override { return kHigh; }
  void after_train_iter(TrainContext&) override {}

 private:
  std::string name_;
};

const bool kOwnHookRegistered = [] {
  register_hook("OwnHook", [](ConfigNode& node, HookContext&) {
    return std::make_unique<OwnHook>(node.read<std::string>("name", "own"));
  });
  return true;
}();

TEST(HookConfig, NullRemovesAndTypeReplaces) {
  EXPECT_EQ(kDefault, default_hook_keys());  // each has the name of its key
  const std::string early = "default_hooks: {early: {type: OwnHook}}";
  for (const auto& [hooks, expected] : std::vector<std::pair<std::string, Names>>{
           {"", kDefault},
           {"default_hooks: null", kDefault},
           {"default_hooks: {timer: null, visualization: null, checkpoint: null}",
            {"runtime_info", "nan_guard", "sampler_seed", "logger", "param_scheduler"}},
           {"default_hooks: {timer: {type: OwnHook}}",
            {"runtime_info", "own", "nan_guard", "sampler_seed", "visualization", "logger", "param_scheduler",
             "checkpoint"}},
           {"default_hooks: {visualization: {type: SegVisualizationHook}}", kDefault},
           {"default_hooks: {early: {type: OwnHook}, mean: {type: EMAHook, priority: 95}}",
            {"runtime_info", "own", "nan_guard", "timer", "sampler_seed", "visualization", "logger", "param_scheduler",
             "checkpoint", "ema"}},
           {"default_hooks: {early: null}", kDefault},  // as a resolved config has it
           {"custom_hooks: [null, {type: NaNGuardHook, interval: 5}, null]",
            kDefault},  // it takes the default one's place
           {"default_hooks: {nan_guard: {action: stop}}", kDefault},
           {"default_hooks: {nan_guard: null}\ncustom_hooks: [{type: NaNGuardHook}]", kDefault}})
    EXPECT_EQ(order(hooks), expected) << hooks;
  EXPECT_EQ(build(early, {"default_hooks.early=null"}).trainer->hooks().order(), kDefault);
  expect_error<ConfigError>([&] { build(early, {"default_hooks.earli=null"}); },
                            {"command line: unknown key 'earli' in default_hooks", "did you mean 'early'"});
  expect_error<ConfigError>(
      [] { order("default_hooks: {nan_guard: {action: stop}}\ncustom_hooks: [{type: NaNGuardHook}]"); },
      {"custom_hooks.0", "second hook 'nan_guard'"});
}

TEST(HookConfig, SchedulesNeedAHookThatDrivesThem) {
  const std::string schedule = "param_scheduler: {type: Cosine}\n";
  expect_error<ConfigError>([&] { build(schedule + "default_hooks: {param_scheduler: {type: EmptyCacheHook}}"); },
                            {"c.yaml:5: default_hooks.param_scheduler is of type EmptyCacheHook", "without effect"});
  expect_error<ConfigError>(
      [&] { build(schedule + "default_hooks: {param_scheduler: null}\ncustom_hooks: [{type: EMAHook}]"); },
      {"default_hooks.param_scheduler is null", "without effect"});
  // Elsewhere in either list, or a type of the user's in its place.
  EXPECT_EQ(
      order(schedule + "default_hooks: {param_scheduler: null}\ncustom_hooks: [{type: ParamSchedulerHook}]").size(),
      kDefault.size());
  EXPECT_EQ(order(schedule + "default_hooks: {param_scheduler: null, mine: {type: ParamSchedulerHook}}").size(),
            kDefault.size());
  EXPECT_EQ(order(schedule + "default_hooks: {param_scheduler: {type: OwnHook}}").size(), kDefault.size());
  EXPECT_EQ(order("default_hooks: {param_scheduler: {type: EmptyCacheHook}}").size(), kDefault.size());
}

TEST(HookConfig, AHookWithoutPriorityHasItsOwn) {
  const duet::Run run = build(
      "custom_hooks: [{type: OwnHook}, {type: EMAHook}, {type: OwnHook, name: late, priority: LOWEST}, "
      "{type: OwnHook, name: fine, priority: 33}]");
  const HookList& hooks = run.trainer->hooks();
  EXPECT_EQ(hooks.priority_of("own"), kHigh);
  EXPECT_EQ(hooks.priority_of("ema"), kNormal);
  EXPECT_EQ(hooks.priority_of("late"), kLowest);
  EXPECT_EQ(hooks.priority_of("fine"), 33);
  const auto names = [&](HookPoint point) {
    Names found;
    for (const HookPlace& place : hooks.places(point)) found.push_back(place.name);
    return found;
  };
  EXPECT_EQ(names(HookPoint::kInStep), (Names{"nan_guard", "ema"}));
  EXPECT_TRUE(names(HookPoint::kAfterBackward).empty());
  const Names after_iter = names(HookPoint::kAfterTrainIter);
  EXPECT_EQ(std::count(after_iter.begin(), after_iter.end(), "own"), 1);
  EXPECT_EQ(std::count(after_iter.begin(), after_iter.end(), "ema"), 0);
}

TEST(HookConfig, EpochsBecomeSteps) {
  // A probe tells what a factory sees.
  static std::vector<int64_t> seen;
  static Names metrics;
  register_hook("ContextProbe", [](ConfigNode&, HookContext& context) {
    seen = {context.steps_per_epoch, context.planned_steps, std::ssize(context.schedules),
            static_cast<int64_t>(context.hooks.size())};
    metrics = context.metrics;
    return std::make_unique<OwnHook>("probe");
  });
  build("custom_hooks: [{type: ContextProbe}]\nparam_scheduler: {type: Cosine}\nevaluator: {type: Accuracy}",
        {"trainer={max_epochs: 3, accumulate: 2, limit_train_batches: 9}"});
  EXPECT_EQ(seen, (std::vector<int64_t>{5, 15, 1, std::ssize(kDefault)}));
  EXPECT_EQ(metrics, (Names{"accuracy", "loss"}));
  expect_error<ConfigError>(
      [] { build("default_hooks: {checkpoint: {by_epoch: true}}", {"data.train.sampler=infinite"}); },
      {"c.yaml:4: default_hooks.checkpoint.by_epoch is true", "no epochs"});
}

TEST(HookConfig, EMAHooksHaveNamesAndPlacesOfTheirOwn) {
  const std::string few =
      "default_hooks: {runtime_info: null, nan_guard: null, timer: null, sampler_seed: null, visualization: null, "
      "param_scheduler: null}\ncustom_hooks: ";
  EXPECT_EQ(order(few + "[{type: EMAHook, priority: 65}]"), (Names{"logger", "ema", "checkpoint"}));
  EXPECT_EQ(order(few + "[{type: EMAHook}, {type: EMAHook, begin_iter: 5, momentum: 1}, {type: EMAHook, name: mean}]"),
            (Names{"ema", "ema_2", "mean", "logger", "checkpoint"}));
}

TEST(HookConfig, MetricsThatNobodyReportsAreNamed) {
  const std::string miou = "evaluator: {type: IoUMetric, num_classes: 3, prefix: val}\n";
  const std::string plateau = "param_scheduler: {type: ReduceOnPlateau, rule: greater, monitor: ";
  const std::string by_default = miou + "param_scheduler: {type: ReduceOnPlateau, monitor: val/mIoU";
  const std::string cells = "evaluator: {type: ConfusionMatrix, num_classes: 3, flatten: true}\n";
  for (const auto& [text, parts] : std::vector<std::pair<std::string, Names>>{
           {miou + "default_hooks: {checkpoint: {save_best: mIoU}}", {"save_best is 'mIoU'", "'val/mIoU'"}},
           {miou + plateau + "mIoU}", {"c.yaml:5: param_scheduler.monitor is 'mIoU'", "did you mean 'val/mIoU'"}},
           // A reduction by an accuracy that falls: the default of mmengine and PyTorch.
           {by_default + "}", {"c.yaml:5: param_scheduler.rule is missing", "'val/mIoU'", "set rule: greater"}},
           {cells + "default_hooks: {checkpoint: {save_best: auto}}", {"'confusion_0_0'", "not what is better"}}})
    expect_error<ConfigError>([&] { build(text); }, parts);
  for (const std::string& text : {miou + plateau + "val/mIoU}", plateau + "loss}", by_default + ", rule: less}",
                                  cells + "default_hooks: {checkpoint: {save_best: auto, rule: greater}}"})
    EXPECT_NO_THROW(build(text)) << text;
}

// What the fields of options do not say; reference_test.cpp has the rest.
TEST(HookConfig, RefusesNonsense) {
  const auto custom = [](const std::string& hook) { return "custom_hooks=[{type: " + hook + "}]"; };
  const std::string logger = "default_hooks.logger.", checkpoint = "default_hooks.checkpoint";
  const std::vector<std::pair<std::string, Names>> cases = {
      {custom("EmaHok"), {"command line: custom_hooks.0.type is 'EmaHok'", "did you mean 'EMAHook'"}},
      {custom("EMAHook, gamma: 5"), {"unknown key 'gamma'"}},
      {custom("EMAHook, ema_type: StochasticWeightAverage, momentum: 0.1"), {"momentum is set", "remove it"}},
      {custom("EMAHook, begin_iter: 5, start_iters: 5"), {"custom_hooks.0.start_iters", "beside begin_iter"}},
      {custom("EMAHook, priority: NORMAAL"), {"custom_hooks.0.priority is 'NORMAAL'", "did you mean 'NORMAL'"}},
      {custom("EMAHook, name: checkpoint"), {"custom_hooks.0", "second hook 'checkpoint'"}},
      {custom("EarlyStoppingHook, monitor: los"), {"custom_hooks.0.monitor is 'los'", "did you mean 'loss'"}},
      {custom("ProfilerHook, schedule: {active: 2, wiat: 1}"), {"in custom_hooks.0.schedule", "did you mean 'wait'"}},
      {"custom_hooks=EMAHook", {"custom_hooks is 'EMAHook'", "expected a list"}},
      {"default_hooks.mine={type: LoggerHook}", {"default_hooks.mine: ", "second hook 'logger'"}},
      {logger + "sinks=[screen]", {"logger.sinks.0 is 'screen'", "known: terminal"}},
      {logger + "sinks=[{type: wnadb}]", {"logger.sinks.0.type is 'wnadb'", "did you mean 'wandb'"}},
      {logger + "sinks=[{type: jsonl, folder: x}]", {"unknown key 'folder' in default_hooks.logger.sinks.0"}},
      {logger + "custom_cfg=[{method_name: max}]", {"custom_cfg.0.data_src is missing"}},
      {logger + "custom_cfg=[{data_src: loss, window_size: all}]", {"window_size is 'all'", "epoch or global"}},
      {"default_hooks.sampler_seed={seed: 1}", {"unknown key 'seed' in default_hooks.sampler_seed"}},
      {checkpoint + ".save_best=los", {"save_best is 'los'", "did you mean 'loss'"}},
      {checkpoint + ".interval_time=soon", {"checkpoint.interval_time is 'soon'", "a time above 0"}},
  };
  for (const auto& [word, parts] : cases) {
    SCOPED_TRACE(word);
    expect_error<ConfigError>([&] { build("", {word}); }, parts);
  }
}

}  // namespace
}  // namespace duet
