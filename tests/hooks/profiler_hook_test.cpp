#include "hooks/profiler_hook.h"
#include <fstream>
#include <map>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/stubs/base.h>
#include "base/device.h"
#include "core/hook.h"
#include "graph/graph_trainer.h"
#include "make_trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/fakes.h"
#include "tests/support/loop_runs.h"
#include "tests/support/modes.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

using ::testing::ElementsAre;
using testing::mlp_task;
using testing::Names;

bool profiling() { return torch::profiler::impl::profilerEnabled(); }

class Profiler : public testing::InBothModes {
 protected:
  std::unique_ptr<BaseTrainer> make(const ProfilerHookOptions& options) {
    TrainerOptions trainer_options;
    trainer_options.work_dir = folder_.path().string();
    seed_all(3);
    auto trainer = testing::make_trainer(GetParam(), mlp_task().make(), trainer_options);
    trainer->add_hook(std::make_unique<ProfilerHook>(options));
    auto watch = std::make_unique<CallbackHook>("watch");
    watch->on(HookPoint::kBeforeTrainIter, [](TrainContext&) {}).on(HookPoint::kAfterTrainIter, [](TrainContext&) {});
    trainer->add_hook(std::move(watch));
    return trainer;
  }
  static void steps(BaseTrainer& trainer, int64_t count) {
    for (int64_t n = 0; n < count; ++n) trainer.step(mlp_task().batch(8, static_cast<uint64_t>(n)));
  }
  Names files() const { return names_in(folder_.path() / "trace"); }
  nlohmann::json trace(const std::string& name) const {
    return nlohmann::json::parse(std::ifstream(folder_.path() / "trace" / name)).at("traceEvents");
  }
  // How often each span occurs.
  std::map<std::string, int> spans(const std::string& name) const {
    std::map<std::string, int> counts;
    for (const auto& event : trace(name)) {
      if (event.at("ph") == "X") ++counts[event.at("name").get<std::string>()];
    }
    return counts;
  }

  TempDir folder_;
};

TEST_P(Profiler, TracesTheStepsOfItsSchedule) {
  const auto trainer = make({.skip_first = 1, .wait = 1, .warmup = 1, .active = 2, .repeat = 2});
  steps(*trainer, 12);
  trainer->finish();
  EXPECT_THAT(files(), ElementsAre("step-4-5.json", "step-8-9.json"));
  for (const int64_t first : {4, 8}) {
    auto counts = spans("step-" + std::to_string(first) + "-" + std::to_string(first + 1) + ".json");
    EXPECT_EQ(counts["hook:watch:before_train_iter"], 2);
    EXPECT_EQ(counts["hook:watch:after_train_iter"], 2);
    EXPECT_EQ(counts["ProfilerStep#" + std::to_string(first)], 1);
    EXPECT_EQ(counts["ProfilerStep#" + std::to_string(first + 1)], 1);
    EXPECT_EQ(counts["ProfilerStep#" + std::to_string(first + 2)], 0);
    EXPECT_EQ(counts["aten::addmm"], 4) << "two layers in two steps";
  }
}

// Steps 5 to 8 are due for a comparison with an eager run (after 1, 2, 4, ... replays) and for checks.
TEST_P(Profiler, TracesReplaysWithoutTheChecksBesideThem) {
  const auto trainer = make({.wait = 4, .warmup = 0, .active = 4});
  const auto checked = [&] {
    const auto* graph = dynamic_cast<const GraphTrainer*>(trainer.get());
    return graph == nullptr ? 0 : graph->report().front().checked;
  };
  steps(*trainer, 4);
  const int64_t before = checked();
  steps(*trainer, 4);
  EXPECT_EQ(checked(), before);
  EXPECT_EQ(spans("step-5-8.json")["aten::addmm"], 8) << "two layers in four steps";
  steps(*trainer, 4);
  if (mode() == "eager") return;
  EXPECT_GT(checked(), before) << "what was put off comes afterwards";
  const auto first = make({.wait = 0, .warmup = 0, .active = 20});
  steps(*first, 6);
  EXPECT_EQ(dynamic_cast<const GraphTrainer&>(*first).report().front().checked, 1) << "but the first one cannot wait";
}

TEST_P(Profiler, CountsTheStepsOfTheRunAndNamesThoseOfTraining) {
  const auto first = make({.repeat = 1}), second = make({.wait = 0, .warmup = 1, .active = 1});
  steps(*first, 2);
  first->finish();
  EXPECT_THAT(files(), ElementsAre());  // the run ended before its first active step
  second->load_state_dict(first->state_dict());
  steps(*second, 3);
  EXPECT_THAT(files(), ElementsAre("step-4-4.json"));
}

TEST_P(Profiler, EndsWithAnException) {
  const auto trainer = make({.wait = 0, .warmup = 1, .active = 9});
  trainer->on(HookPoint::kBeforeTrainIter, [](TrainContext& context) {
    if (context.progress.step == 3) throw std::runtime_error("planned");
  });
  expect_error<std::runtime_error>([&] { steps(*trainer, 9); }, {"planned"});
  EXPECT_FALSE(profiling());
  EXPECT_THAT(files(), ElementsAre("step-2-4.json"));
  EXPECT_EQ(spans("step-2-4.json")["ProfilerStep#3"], 1);
}

TEST_P(Profiler, EndsWithItsTrainer) {
  for (const int64_t count : {1, 3}) {  // in the warm-up; while it records
    make({.wait = 0, .warmup = 2, .active = 9})->hooks();
    const auto trainer = make({.wait = 0, .warmup = 2, .active = 9});
    steps(*trainer, count);
    EXPECT_EQ(profiling(), count == 3);
  }
  EXPECT_FALSE(profiling());
}

TEST_P(Profiler, ChangesNoResult) {
  const auto traced = make({.wait = 2, .warmup = 1, .active = 2});
  steps(*traced, 8);
  const StateDict weights = traced->weights();
  seed_all(3);
  const auto plain = testing::make_trainer(GetParam(), mlp_task().make());
  steps(*plain, 8);
  testing::expect_same_bits(weights, plain->weights());
}

// Ranges as NVTX would show them.
class FakeNvtx : public torch::profiler::impl::ProfilerStubs {
 public:
  FakeNvtx() : before_(torch::profiler::impl::cudaStubs()) { torch::profiler::impl::registerCUDAMethods(this); }
  ~FakeNvtx() override {
    torch::profiler::impl::registerCUDAMethods(const_cast<torch::profiler::impl::ProfilerStubs*>(before_));
  }
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*, int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void rangePush(const char* name) const override {
    std::string outer;
    for (const std::string& range : open) outer += range + " > ";
    ranges.push_back(outer + name);
    open.emplace_back(name);
  }
  void rangePop() const override {
    ASSERT_FALSE(open.empty()) << "popped more than was pushed";
    open.pop_back();
  }
  bool enabled() const override { return has_cuda; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

  bool has_cuda = true;
  mutable Names open, ranges;

 private:
  const torch::profiler::impl::ProfilerStubs* before_;
};

TEST_P(Profiler, MakesNvtxRangesOfHookPointsAndSteps) {
  const FakeNvtx nvtx;
  const auto trainer = make({.repeat = 1, .nvtx = true});
  steps(*trainer, 2);
  EXPECT_THAT(nvtx.ranges,
              ElementsAre("hook:watch:before_train_iter", "hook:profiler:before_train_iter", "step 1",
                          "step 1 > hook:watch:after_train_iter", "step 1 > hook:profiler:after_train_iter",
                          "hook:watch:before_train_iter", "hook:profiler:before_train_iter", "step 2",
                          "step 2 > hook:watch:after_train_iter", "step 2 > hook:profiler:after_train_iter"));
  EXPECT_TRUE(nvtx.open.empty());
  trainer->finish();
  EXPECT_TRUE(nvtx.open.empty());
}

DUET_IN_BOTH_MODES(Profiler);

TEST(ProfilerHook, TracesKernelsOnAGpu) {
  if (!cuda_available()) GTEST_SKIP() << "no CUDA device";
  for (const Mode mode : {Mode::kEager, Mode::kGraph}) {
    const TempDir folder;
    TrainerOptions options;
    options.device = "cuda";
    const auto trainer = make_trainer(mode, mlp_task().make(), options);
    trainer->add_hook(
        std::make_unique<ProfilerHook>(ProfilerHookOptions{.wait = 8, .nvtx = true, .folder = folder.path().string()}));
    for (uint64_t n = 0; n < 14; ++n) trainer->step(mlp_task().batch(8, n));
    const nlohmann::json trace = nlohmann::json::parse(std::ifstream(folder / "step-10-12.json"));
    int kernels = 0;
    for (const auto& event : trace.at("traceEvents")) kernels += event.value("cat", "") == "kernel" ? 1 : 0;
    EXPECT_GE(kernels, 3 * 5) << to_string(mode);
  }
}

TEST(ProfilerHook, RefusesWhatCannotWork) {
  FakeRun run;
  const auto refuse = [&](const ProfilerHookOptions& options, const std::vector<std::string>& parts) {
    ProfilerHook hook(options);
    expect_error<ConfigError>([&] { hook.before_train(run.context); }, parts);
  };
  const TempDir folder;
  refuse({}, {"work_dir"});
  refuse({.folder = folder.write("file", "x") + "/trace"}, {"file/trace", "cannot be made"});
  FakeNvtx nvtx;
  nvtx.has_cuda = false;
  refuse({.nvtx = true, .folder = folder.path().string()}, {"nvtx", "CUDA"});

  using namespace torch::autograd::profiler;
  const ProfilerConfig config(ProfilerState::KINETO);
  prepareProfiler(config, {ActivityType::CPU});
  enableProfiler(config, {ActivityType::CPU});
  refuse({.wait = 0, .folder = folder.path().string()}, {"profiler that runs"});
  disableProfiler();
}

}  // namespace
}  // namespace duet
