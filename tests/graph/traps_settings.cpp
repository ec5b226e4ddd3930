#include <cfenv>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include "tests/graph/trap.h"

namespace duet::testing {

namespace {

struct ThreadSetting {
  std::string name;
  std::function<void(bool on)> set;
  bool may_change_inside = false;  // it acts above the recorded ops
  int64_t steps = 60;              // with it inside each
};

void set_autograd(bool on, void (c10::AutogradState::*set)(bool)) {
  c10::AutogradState state = c10::AutogradState::get_tls_state();
  (state.*set)(on);
  c10::AutogradState::set_tls_state(state);
}

// Anomaly mode takes down the stack at each op, which costs as much as a hundred steps.
const std::vector<ThreadSetting>& settings() {
  static const std::vector<ThreadSetting> all = {
      {"DefaultDtype",
       [](bool on) { torch::set_default_dtype(caffe2::TypeMeta::fromScalarType(on ? at::kDouble : at::kFloat)); }},
      {"DeterministicAlgorithms", [](bool on) { at::globalContext().setDeterministicAlgorithms(on, false); }},
      {"FlushedDenormals", [](bool on) { at::globalContext().setFlushDenormal(on); }},
      {"RoundingUpwards", [](bool on) { std::fesetround(on ? FE_UPWARD : FE_TONEAREST); }},
      {"OneDnn", [](bool on) { at::globalContext().setUserEnabledMkldnn(!on); }},
      {"Threads", [](bool on) { at::set_num_threads(on ? 2 : 1); }},
      {"AnomalyMode", [](bool on) { torch::autograd::AnomalyMode::set_enabled(on); }, true, 9},
      {"AnomalyModeWithoutNan", [](bool on) { torch::autograd::AnomalyMode::set_enabled(on, /*check_nan=*/false); },
       true, 9},
      {"AutogradWithoutThreads", [](bool on) { set_autograd(!on, &c10::AutogradState::set_multithreading_enabled); },
       true},
      {"Autocast", [](bool on) { at::autocast::set_autocast_enabled(at::kCPU, on); }, true},
      {"FlashAttention", [](bool on) { at::globalContext().setSDPUseFlash(!on); }, true},
  };
  return all;
}

// With numbers so small that flushing them shows, and a tensor of the default dtype.
at::Tensor tiny_loss(TwoLayers& net, const Batch& batch) {
  const at::Tensor tiny = (batch["input"] * 1e-38).sum() * 1e36;
  const at::Tensor made = torch::ones({3}) / 3;
  return F::cross_entropy(net.forward(batch["input"]).to(torch::kFloat), batch["target"]) + tiny +
         made.sum().to(torch::kFloat);
}

// Batches stay what they are, whatever the default dtype.
MakeRun with_loss(const StepLoss& loss) {
  return [loss](StepRun& run) {
    run.loss = loss;
    run.batch = [](int64_t n) {
      Batch batch = batch_at(n % 97);
      batch.set("input", batch["input"].to(torch::kFloat));
      return batch;
    };
  };
}

}  // namespace

void add_setting_cases(Traps& add) {
  for (const auto& [name, set, may_change_inside, steps] : settings()) {
    add(name + "AroundFourSteps", "", [set = set](StepRun& run) {
      with_loss(tiny_loss)(run);
      run.between = [set](BaseTrainer&, int64_t n) {
        if (n == 30 || n == 34) set(n == 30);
      };
    });
    add(name + "InsideFourSteps", "",
        with_loss([set = set, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
          const bool on = ++calls > 30 && calls <= 34;
          const at::Tensor before = tiny_loss(net, batch);
          if (on) set(true);
          const at::Tensor loss = before + tiny_loss(net, batch);
          if (on) set(false);
          return loss;
        }));
    add(name + "InsideEachStep", {may_change_inside ? "" : "changes a setting between its ops", steps},
        with_loss([set = set](TwoLayers& net, const Batch& batch) {
          set(true);
          const at::Tensor loss = tiny_loss(net, batch);
          set(false);
          return loss;
        }));
  }
}

}  // namespace duet::testing
