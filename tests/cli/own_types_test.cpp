#include <gtest/gtest.h>
#include "base/error.h"
#include "cli/config/optim_config.h"
#include "cli/config/run_config.h"
#include "cli/config/schedule_config.h"
#include "cli/registry.h"
#include "optim/groups/detail/param_group_builder.h"
#include "optim/schedules/detail/schedule_rules.h"
#include "tests/support/expect_error.h"

// Optimizers and schedules that a program registers are named in configs like the built-in ones.

namespace duet {
namespace {

void register_once() {
  static bool done = false;
  if (done) return;
  done = true;
  register_optimizer("SignDescent", [](ConfigNode& node) {
    const double lr = node.read_number("lr", 0.01, 0);
    const double memory = node.need<double>("memory");
    OptimizerKind kind;
    kind.slots = [](const OptimizerOptions&) { return std::vector<StateSlot>{}; };
    kind.numbers = [=](const OptimizerOptions&) {
      return std::map<std::string, double>{{"lr", lr}, {"memory", memory}};
    };
    kind.kernel = [](const KernelCall&, const OptimizerOptions&) {};
    return kind;
  });
  register_schedule("Halves", [](ConfigNode& node) {
    const int64_t every = node.read_int("every", 10, 1);
    return
        [every](const ScheduleStep& at) { return at.taken_over / static_cast<double>(int64_t{1} << (at.s / every)); };
  });
}

ConfigNode config(const std::string& more) {
  return ConfigNode::parse_text("model: {type: Mlp}\ntrainer: {max_steps: 100}\n" + more, "c.yaml");
}

TEST(OwnTypes, AnOptimizerReadsItsOwnKeys) {
  register_once();
  const RunConfig run = parse_run_config(config("optim_wrapper: {optimizer: {type: SignDescent, memory: 0.5}}\n"), "c");
  ASSERT_NE(run.trainer.optimizer.own_kind(), nullptr);
  EXPECT_EQ(run.trainer.optimizer.own_kind()->name, "SignDescent");
  EXPECT_EQ(base_numbers(run.trainer.optimizer), (std::map<std::string, double>{{"lr", 0.01}, {"memory", 0.5}}));
  expect_error<ConfigError>([] { parse_run_config(config("optim_wrapper:\n  optimizer: {type: SignDescent}\n"), "c"); },
                            {"c.yaml:4: optim_wrapper.optimizer.memory is missing"});
  expect_error<ConfigError>(
      [] {
        parse_run_config(config("optim_wrapper:\n  optimizer: {type: SignDescent, memory: 1, betas: [1, 2]}\n"), "c");
      },
      {"c.yaml:4: unknown key 'betas' in optim_wrapper.optimizer", "known: type, lr, memory"});
  expect_error<ConfigError>([] { parse_run_config(config("optim_wrapper: {optimizer: {type: SignDecent}}\n"), "c"); },
                            {"did you mean 'SignDescent'"});
}

TEST(OwnTypes, AScheduleReadsItsOwnKeysBesideTheCommonOnes) {
  register_once();
  const RunConfig run = parse_run_config(config("param_scheduler: [{type: Halves, begin: 10, every: 5}]\n"), "c");
  const auto schedules = resolve_schedules(run.schedules, 0);
  validate_schedules(schedules, {100, 0});
  const ScheduleCurve curve(schedules, "lr", {100, 0});
  EXPECT_EQ(curve.at(9, 8.0), 8.0);
  EXPECT_EQ(curve.at(14, 8.0), 8.0);
  EXPECT_EQ(curve.at(15, 8.0), 4.0);
  EXPECT_EQ(curve.at(20, 8.0), 2.0);
  expect_error<ConfigError>([] { parse_run_config(config("param_scheduler: [{type: Halves, evry: 5}]\n"), "c"); },
                            {"unknown key 'evry' in param_scheduler.0", "did you mean 'every'"});
  expect_error<ConfigError>([] { parse_run_config(config("param_scheduler: [{type: Halfs}]\n"), "c"); },
                            {"did you mean 'Halves'"});
  expect_error<ConfigError>([] { parse_run_config(config("param_scheduler: [{type: Halves, every: 0}]\n"), "c"); },
                            {"param_scheduler.0.every is 0"});
}

TEST(OwnTypes, NamesAreTakenOnce) {
  register_once();
  const OptimizerFactory optimizer = [](ConfigNode&) { return OptimizerKind{}; };
  const ScheduleFactory schedule = [](ConfigNode&) { return ScheduleFormulaFn{}; };
  expect_error<ConfigError>([&] { register_optimizer("SignDescent", optimizer); }, {"registered twice"});
  expect_error<ConfigError>([&] { register_optimizer("AdamW", optimizer); }, {"'AdamW' is registered twice"});
  expect_error<ConfigError>([&] { register_optimizer("", optimizer); }, {"without name or factory"});
  expect_error<ConfigError>([&] { register_schedule("Halves", schedule); }, {"registered twice"});
  expect_error<ConfigError>([&] { register_schedule("CosineAnnealingLR", schedule); }, {"registered twice"});
  expect_error<ConfigError>([&] { register_schedule("X", ScheduleFactory{}); }, {"without name or factory"});
}

}  // namespace
}  // namespace duet
