#include <duet/cli/build.h>
#include <duet/cli/registry.h>
#include <duet/cli/run_config.h>
#include <duet/core/error.h>
#include <gtest/gtest.h>

#include "../support/expect_error.h"

namespace duet {
namespace {

// The hooks of a small run with these custom_hooks, in calling order.
std::vector<std::string> hooks_with(const std::string& custom_hooks) {
  register_builtin_types();
  const std::string text =
      "model: {type: Gpt, n_layer: 1, n_embd: 8, n_head: 1}\n"
      "data: {train: {type: Text, batch_size: 4}}\n"
      "trainer: {max_updates: 20}\n"
      "default_hooks: {timer: null}\n"
      "custom_hooks: " + custom_hooks + "\n";
  const RunConfig config = parse_run_config(ConfigNode::parse_text(text, "c.yaml"), "c");
  duet::Run run = build_training(config);
  add_hooks(config, run);
  return run.trainer->hooks().order();
}

using Names = std::vector<std::string>;

TEST(HookConfig, BuildsEMAHooks) {
  EXPECT_EQ(hooks_with("[]"), (Names{"logger", "checkpoint"}));
  EXPECT_EQ(hooks_with("[{type: EMAHook, start_iters: 500, priority: NORMAL}]"), (Names{"ema", "logger", "checkpoint"}));
  EXPECT_EQ(hooks_with("[{type: EMAHook, priority: VERY_LOW}]"), (Names{"logger", "checkpoint", "ema"}));
  EXPECT_EQ(hooks_with("[{type: EMAHook, priority: 65}]"), (Names{"logger", "ema", "checkpoint"}));
  EXPECT_EQ(hooks_with("[{type: EMAHook}, {type: EMAHook, begin_iter: 5, momentum: 1}, {type: EMAHook, name: mean, "
                       "ema_type: StochasticWeightAverage, interval: 4, update_buffers: true, evaluate_on_ema: false}]"),
            (Names{"ema", "ema_2", "mean", "logger", "checkpoint"}));
  EXPECT_EQ(hooks_with("[{type: EMAHook, ema_type: MomentumAnnealingEMA, gamma: 50, begin_epoch: 2}]"), (Names{"ema", "logger", "checkpoint"}));
}

TEST(HookConfig, RefusesNonsense) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"type: EmaHok", {"c.yaml:5: custom_hooks.0.type is 'EmaHok'", "did you mean 'EMAHook'"}},
      {"type: EMAHook, momentun: 0.1", {"unknown key 'momentun' in custom_hooks.0", "did you mean 'momentum'"}},
      {"type: EMAHook, momentum: 0", {"custom_hooks.0", "momentum is 0", "(0, 1]"}},
      {"type: EMAHook, momentum: 1.5", {"custom_hooks.0", "momentum is 1.5", "(0, 1]"}},
      {"type: EMAHook, momentum: .nan", {"custom_hooks.0", "momentum"}},
      {"type: EMAHook, interval: 0", {"custom_hooks.0", "interval is 0", ">= 1"}},
      {"type: EMAHook, gamma: 5", {"unknown key 'gamma'"}},
      {"type: EMAHook, ema_type: MomentumAnnealingEMA, gamma: 0", {"custom_hooks.0", "gamma is 0", ">= 1"}},
      {"type: EMAHook, ema_type: EMA", {"custom_hooks.0", "type is 'EMA'", "StochasticWeightAverage"}},
      {"type: EMAHook, begin_iter: 5, begin_epoch: 1", {"custom_hooks.0", "begin_iter", "begin_epoch", "at most one"}},
      {"type: EMAHook, begin_iter: 5, start_iters: 5", {"custom_hooks.0.start_iters", "beside begin_iter"}},
      {"type: EMAHook, start_iters: -1", {"custom_hooks.0.start_iters is -1"}},
      {"type: EMAHook, priority: NORMAAL", {"custom_hooks.0.priority is 'NORMAAL'", "did you mean 'NORMAL'"}},
      {"type: EMAHook, priority: 101", {"custom_hooks.0.priority is '101'", "0 to 100"}},
      {"type: EMAHook, priority: 5x", {"custom_hooks.0.priority is '5x'"}},
      {"type: EMAHook, name: checkpoint", {"custom_hooks.0", "second hook 'checkpoint'"}},
      {"type: EMAHook, name: a.b", {"custom_hooks.0", "'a.b'", "without dots"}},
  };
  for (const auto& [hook, parts] : cases) {
    SCOPED_TRACE(hook);
    expect_error<ConfigError>([&] { hooks_with("[{" + hook + "}]"); }, parts);
  }
}

}  // namespace
}  // namespace duet
