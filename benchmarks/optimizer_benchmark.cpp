// What lies between backward and the new weights: AdamW over 10 M parameters in 6 groups, by bare calls of ATen's fused
// kernel and by duet's step, without and with clipping; and the other optimizers. One thread, CPU time of the process.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>
#include "base/log.h"
#include "benchmarks/figures.h"
#include "core/detail/train_step.h"

namespace duet::benchmarks {

namespace {

constexpr int64_t kGroups = 6;
constexpr int64_t kTensors = 60;
constexpr int64_t kElements = 10'000'000 / kTensors;

// A loss whose gradients are the batch: the backward costs little and is not timed.
class LinearTask : public Task {
 public:
  LinearTask() {
    at::manual_seed(0);
    for (int64_t i = 0; i < kTensors; ++i) {
      weights_.emplace_back("w" + std::to_string(i), at::randn({kElements}).mul_(0.1).requires_grad_(true));
      slopes_.push_back(at::randn({kElements}));
    }
  }
  NamedTensors named_parameters() const override { return weights_; }
  NamedTensors named_buffers() const override { return {}; }
  void train(bool) override {}
  void to(at::Device) override {}
  StepOutput training_step(const Batch&) override {
    at::Tensor loss = at::zeros({});
    for (std::size_t i = 0; i < slopes_.size(); ++i) loss = loss + at::dot(weights_[i].second, slopes_[i]);
    return {loss, {}};
  }

 private:
  NamedTensors weights_;
  std::vector<at::Tensor> slopes_;
};

ParamGroups six_groups(Task& task, const OptimizerOptions&) {
  ParamGroups groups(kGroups);
  const NamedTensors parameters = task.named_parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::size_t group = i % kGroups;
    groups[group].numbers["lr"] = 1e-4 * static_cast<double>(group + 1);
    groups[group].parameters.push_back(parameters[i]);
  }
  return groups;
}

// Reads the clock after the backward and after the optimizer.
class Stopwatch : public StepObserver {
 public:
  void after_backward(const StepView&) override { begin_ = cpu_seconds(); }
  void in_step(StepView&) override { seconds = cpu_seconds() - begin_; }
  double seconds = 0;

 private:
  double begin_ = 0;
};

void ours(benchmark::State& state, const TrainerOptions& options) {
  TrainStep rule(std::make_unique<LinearTask>(), at::kCPU, options);
  MicroBatches micro_batches{{Batch{{"x", at::zeros({1})}}}, {1}, 1};
  Stopwatch stopwatch;
  for ([[maybe_unused]] auto _ : state) {
    rule.begin(micro_batches);
    rule.run(micro_batches, stopwatch);
    rule.end();
    state.SetIterationTime(stopwatch.seconds);
  }
}

void bare(benchmark::State& state) {
  LinearTask task;
  struct Lists {
    std::vector<at::Tensor> parameters, gradients, averages, squares, steps;
  };
  std::vector<Lists> groups(kGroups);
  const NamedTensors parameters = task.named_parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Lists& lists = groups[i % kGroups];
    lists.parameters.push_back(parameters[i].second);
    lists.averages.push_back(at::zeros({kElements}));
    lists.squares.push_back(at::zeros({kElements}));
    lists.steps.push_back(at::zeros({}));
  }
  for ([[maybe_unused]] auto _ : state) {
    for (const auto& entry : parameters) entry.second.mutable_grad().reset();
    task.training_step({}).loss.backward();
    const at::NoGradGuard no_grad;
    for (Lists& lists : groups) {
      lists.gradients.clear();
      for (const at::Tensor& parameter : lists.parameters) lists.gradients.push_back(parameter.grad());
    }
    const double begin = cpu_seconds();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      Lists& lists = groups[g];
      at::_foreach_add_(lists.steps, 1);
      at::_fused_adamw_(lists.parameters, lists.gradients, lists.averages, lists.squares, {}, lists.steps,
                        1e-4 * static_cast<double>(g + 1), 0.9, 0.999, 0.01, 1e-8, false, false);
    }
    state.SetIterationTime(cpu_seconds() - begin);
  }
}

template <class Body>
void add(const std::string& name, Body body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->Iterations(60)->UseManualTime()->Unit(benchmark::kMillisecond);
}

void add_ours(const std::string& name, const std::function<void(TrainerOptions&)>& change) {
  TrainerOptions options;
  options.param_groups = six_groups;
  change(options);
  add(name, [options](benchmark::State& state) { ours(state, options); });
}

void add_benchmarks() {
  add("AdamW/bare fused calls", bare);
  add_ours("AdamW/duet", [](TrainerOptions&) {});
  add_ours("AdamW/duet, norm clipping", [](TrainerOptions& options) { options.clip_grad = ClipNorm{}; });
  add_ours("AdamW/duet, skip if not finite", [](TrainerOptions& options) { options.non_finite = NonFinite::kSkip; });
  add_ours("AdamW/duet, loss scaling", [](TrainerOptions& options) { options.loss_scale = LossScaleOptions{}; });
  for (const char* type :
       {"SGD", "Adagrad", "RMSprop", "NAdam", "RAdam", "Lion", "Adadelta", "Adafactor", "Adamax", "ASGD", "Rprop"}) {
    add_ours(std::string(type) + "/duet",
             [type](TrainerOptions& options) { options.optimizer = OptimizerOptions::of_type(type); });
  }
}

}  // namespace

}  // namespace duet::benchmarks

int main(int argc, char** argv) {
  at::set_num_threads(1);
  duet::set_log_level(duet::LogLevel::kWarning);
  duet::benchmarks::add_benchmarks();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
