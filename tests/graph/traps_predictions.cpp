#include "tests/graph/trap.h"

// Forward passes whose host code does not always do the same.

namespace duet::testing {

void add_prediction_cases(Traps& add) {
  add("APredictionWithANumberThatChanges", "host code that changed",
      [calls = 0](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
        return {{"prediction", net.forward(batch["input"]) * (calls++ < 20 ? 1.0 : 2.0)}};
      });
  add("PredictionsThatChangePlaces", "other tensors than the recorded ones",
      [calls = 0](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
        at::Tensor a = net.forward(batch["input"]), b = a.softmax(1);
        if (++calls > 20) std::swap(a, b);
        return {{"a", a}, {"b", b}};
      });
  add("PredictionsThatChangeNames", "'late'", [calls = 0](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
    return {{++calls > 20 ? "late" : "early", net.forward(batch["input"])}};
  });
  add("APredictionThatReadsBack", "reads a value back", [](TwoLayers& net, const Batch& batch) -> NamedTensors {
    const at::Tensor y = net.forward(batch["input"]);
    return {{"prediction", y.sum().item<double>() > 0 ? y : -y}};
  });
  add("APredictionOfMemoryReadByAddress", "by its address", [](TwoLayers& net, const Batch& batch) -> NamedTensors {
    const at::Tensor y = net.forward(batch["input"]);
    return {{"prediction", y}, {"first", torch::full({1}, y.const_data_ptr<float>()[0])}};
  });
  add("APredictionThatIsKept", "", [last = at::Tensor()](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
    const at::Tensor y = net.forward(batch["input"]);
    const at::Tensor sum = last.defined() ? y + last : y + y;
    last = y;
    return {{"prediction", y}, {"sum", sum}};
  });
  add("PredictionsOfTheHost", "", [calls = 0](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
    return {{"prediction", net.forward(batch["input"])}, {"classes", torch::tensor({3, 1, ++calls / 20})}};
  });
  add("PredictionsWithNoiseWrittenInPlace", "", [](TwoLayers& net, const Batch& batch) -> NamedTensors {
    at::Tensor y = net.forward(batch["input"]);
    y.add_(0.1 * torch::randn_like(y)).slice(1, 0, 2).zero_();
    return {{"prediction", y}, {"part", y.t()[0]}};
  });
  add("APredictionWithAState", "", [state = at::Tensor()](TwoLayers& net, const Batch& batch) mutable -> NamedTensors {
    if (!state.defined()) state = torch::zeros({8, 5});
    state.mul_(0.5).add_(net.forward(batch["input"]));
    return {{"state", state}};
  });
  add("APredictionInAHookOfAStep", "", [](StepRun& run) {
    run.predict = [](TwoLayers& net, const Batch& batch) -> NamedTensors {
      return {{"prediction", net.forward(batch["input"])}};
    };
    run.between = [seen = run.seen](BaseTrainer& trainer, int64_t n) {
      if (n > 0) return;
      trainer.on(HookPoint::kAfterBackward, [&trainer, seen](TrainContext& run) {
        seen->push_back(trainer.predict(batch_at(run.progress.step))["prediction"]);
      });
    };
  });
  add("APredictionOfAModelThatChanges", "", [](StepRun& run) {
    run.predict = [](TwoLayers& net, const Batch& batch) -> NamedTensors {
      return {{"prediction", net.forward(batch["input"])}};
    };
    run.between = [net = run.net](BaseTrainer&, int64_t n) {
      const at::NoGradGuard no_grad;
      if (n % 16 == 15) net->a->weight.set_data(net->a->weight * 0.5);
      net->b->train(n % 5 > 2);
    };
  });
}

}  // namespace duet::testing
