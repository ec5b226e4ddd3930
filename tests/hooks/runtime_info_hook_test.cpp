#include <cmath>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/device.h"
#include "hooks/detail/log_text.h"
#include "hooks/detail/run_info_hooks.h"
#include "tests/support/fakes.h"
#include "tests/support/log_lines.h"
#include "tests/support/toy_tasks.h"

namespace duet {
namespace {

double gauge(const FakeRun& run, const std::string& name) {
  const auto& gauges = run.context.log.gauges();
  return gauges.count(name) == 0 ? -1 : gauges.at(name)();
}

TEST(RuntimeInfo, PublishesTheRateThatTheStepUsedAndTheLargestWhileGroupsDiffer) {
  FakeRun one_group, run({0.1, 0.3, 0.2});
  RuntimeInfoHook hook, of_one;
  of_one.before_train(one_group.context);
  EXPECT_EQ(gauge(one_group, "max_lr"), -1) << "one group has no other";
  hook.before_train(run.context);
  EXPECT_EQ(gauge(run, "lr"), 0.1);
  EXPECT_EQ(gauge(run, "max_lr"), 0.3);
  run.hyper_parameters.set(0, "lr", 0.3);
  EXPECT_EQ(gauge(run, "lr"), 0.3);
  EXPECT_TRUE(std::isnan(gauge(run, "max_lr")));
}

TEST(RuntimeInfo, PublishesMomentumOnceItHasMoved) {
  for (const char* name : {"momentum", "beta1"}) {
    FakeRun run;
    run.hyper_parameters.give(0, name, 0.9);
    RuntimeInfoHook hook;
    hook.before_train(run.context);
    EXPECT_TRUE(std::isnan(gauge(run, "momentum")));
    run.hyper_parameters.set(0, name, 0.8);
    EXPECT_EQ(gauge(run, "momentum"), 0.8);
    run.hyper_parameters.set(0, name, 0.9);
    EXPECT_EQ(gauge(run, "momentum"), 0.9);

    RuntimeInfoHook resumed;
    resumed.load_state_dict(hook.state_dict());
    resumed.before_train(run.context);
    EXPECT_EQ(gauge(run, "momentum"), 0.9);
  }
}

TEST(RuntimeInfo, SaysWhatRunsWhere) {
  FakeRun run;
  std::string published;
  const auto listening = run.context.log.listen(
      nullptr, [&](const std::string& name, const std::string& text) { published = name + ": " + text; });
  seed_all(4711);
  RuntimeInfoHook hook;
  const std::string text = testing::stderr_of([&] { hook.before_run(run.context); });
  EXPECT_EQ(testing::stderr_of([&] { hook.before_train(run.context); }), "");
  for (const std::string& said : {text, published}) {
    EXPECT_NE(said.find("EagerTrainer on cpu, seed 4711"), std::string::npos) << said;
    EXPECT_NE(said.find("LibTorch 2."), std::string::npos) << said;
  }
  EXPECT_EQ(published.substr(0, 14), "runtime_info: ");
}

class SummaryTask : public FakeTask {
 public:
  NamedTensors named_parameters() const override {
    const auto trained = [](at::Tensor tensor) { return tensor.requires_grad_(); };
    return {{"net.stem.weight", trained(at::zeros({4, 5}))},
            {"net.stem.bias", trained(at::zeros({5}))},
            {"net.body.0.weight", trained(at::zeros({100}))},
            {"net.body.1.weight", at::zeros({1000})},
            {"net.head.weight", at::zeros({7}, at::kDouble)}};
  }
  NamedTensors named_buffers() const override { return {{"net.body.mean", at::zeros({3})}}; }
  std::vector<ModuleInfo> modules() const override {
    return {{"", "TopImpl"}, {"net", "NetImpl"}, {"net.stem", "LinearImpl"}, {"net.body", "Sequential"}};
  }
};

TEST(ModelSummary, CountsThePartsOfTheFirstLevelThatHasSeveral) {
  const SummaryTask task;
  EXPECT_EQ(model_summary(task),
            "model: 1132 parameters (0.0 MiB), 125 trainable, 3 values in buffers\n"
            "  net.stem  Linear        25\n"
            "  net.body  Sequential  1100  100 trainable\n"
            "  net.head                 7  frozen");
}

}  // namespace
}  // namespace duet
