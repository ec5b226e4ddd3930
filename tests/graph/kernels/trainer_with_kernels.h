#pragma once

#include <memory>
#include <utility>
#include "core/task.h"
#include "graph/detail/graph_executor.h"
#include "graph/kernels/bitexact_kernel.h"
#include "tests/support/trainer_runs.h"
#include "tests/support/two_layers.h"

namespace duet::testing {

// A trainer whose replays use the kernels of these passes.
class TrainerWithPasses : public BaseTrainer {
 public:
  TrainerWithPasses(std::unique_ptr<Task> task, const KernelPasses& passes, const GraphOptions& graph)
      : BaseTrainer(std::move(task), on_cpu(), Mode::kGraph, [passes, graph](StepCode& step, at::Device) {
          return std::make_unique<GraphExecutor>(step, cpu_capture_method(passes), graph);
        }) {}
  GraphExecutor& graph() const { return static_cast<GraphExecutor&>(executor(Mode::kGraph)); }

 private:
  static TrainerOptions on_cpu() {
    TrainerOptions options;
    options.device = "cpu";
    return options;
  }
};

// The same with one pass, on two layers.
class TrainerWithKernels : public TrainerWithPasses {
 public:
  TrainerWithKernels(FindKernels& find, const GraphOptions& graph)
      : TrainerWithKernels(make_two_layers(), find, graph) {}

  SignatureReport report() const { return graph().report().front(); }
  std::vector<at::Tensor> parameters() const { return net_->parameters(); }

  static std::shared_ptr<TwoLayers> make_two_layers() {
    seed_all(3);
    return std::make_shared<TwoLayers>();
  }
  static std::unique_ptr<BaseTrainer> eager(const std::shared_ptr<TwoLayers>& net = make_two_layers()) {
    return make_trainer("eager", make_task(net, plain_loss));
  }

 private:
  TrainerWithKernels(std::shared_ptr<TwoLayers> net, FindKernels& find, const GraphOptions& graph)
      : TrainerWithPasses(make_task(net, plain_loss),
                          {new KernelPass{"sabotaged products", &find}},  // NOLINT: stays switched off
                          graph),
        net_(std::move(net)) {}

  std::shared_ptr<TwoLayers> net_;
};

}  // namespace duet::testing
