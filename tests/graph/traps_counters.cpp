#include <mutex>
#include <random>
#include <ATen/CPUGeneratorImpl.h>
#include "tests/graph/trap.h"

namespace duet::testing {

namespace {

double drawn_by_hand(double low, double high) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const uint32_t number = at::check_generator<at::CPUGeneratorImpl>(generator)->random();
  return low + (high - low) * static_cast<double>(number % 1000) / 1000;
}

}  // namespace

void add_counter_cases(Traps& add) {
  for (const int64_t period : {2, 5, 500}) {
    add("EveryCall" + std::to_string(period), {period < 8 ? "" : "pow", std::max<int64_t>(60, 2 * period + 20)},
        [period, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
          return noisy(net, batch, ++calls % period == 0);
        });
  }
  for (const int64_t first : {4, 900}) {
    add("FromCall" + std::to_string(first) + "On", {"", first + 60},
        [first, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
          return noisy(net, batch, ++calls > first);
        });
  }
  add("ADrawOfTheHostsFromTheDefaultGeneratorAtTimes", "draws from a random generator",
      [](TwoLayers& net, const Batch& batch) {
        const at::Tensor loss = loss_with_dropout(net, batch);
        if (batch["input"].const_data_ptr<float>()[0] < 1.2F) return loss;
        return drawn_by_hand(0, 1) < 0.5 ? loss : loss + 0.1 * net.a->weight.square().sum();
      });
  add("ANumberDrawnByHandBeforeASplitPoint", "the host draws from the default random generator", [](StepRun& run) {
    run.loss = [](TwoLayers& net, const Batch& batch) { return loss_with_dropout(net, batch) * drawn_by_hand(1, 2); };
    run.between = [](BaseTrainer& trainer, int64_t step) {
      if (step == 0) trainer.on(HookPoint::kAfterBackward, [](TrainContext&) {});
    };
  });
  add("AStateOfTheGeneratorThatIsPutBackFromSomeStepOn", "sets its state",
      [calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
        at::Generator generator = at::detail::getDefaultCPUGenerator();
        const at::Tensor state = generator.get_state();
        const at::Tensor loss = loss_with_dropout(net, batch);
        if (++calls > 20) generator.set_state(state);
        return loss;
      });
  // Where something else draws between the steps as well.
  add("ANumberDrawnByHandAfterRandomOps", "", [](StepRun& run) {
    run.loss = [](TwoLayers& net, const Batch& batch) { return loss_with_dropout(net, batch) * drawn_by_hand(1, 2); };
    run.between = [](BaseTrainer&, int64_t) { torch::randn({3}); };
  });
  for (const bool dropout : {false, true}) {
    add(std::string("ANumberDrawnByHandAndThrownAway") + (dropout ? "AfterRandomOps" : ""), "draws from",
        [=](StepRun& run) {
          run.loss = [dropout](TwoLayers& net, const Batch& batch) {
            const at::Tensor loss = loss_with_dropout(net, batch, dropout);
            drawn_by_hand(0, 1);
            return loss;
          };
          run.between = [seen = run.seen](BaseTrainer&, int64_t) { *seen = {torch::randn({3})}; };
        });
  }
  add("ANumberThatChangesLaterWithoutChecks", "'other' of aten::mul", [](StepRun& run) {
    const auto factor = std::make_shared<double>(1.0);
    run.graph.check = Check::kOff;
    run.loss = [factor](TwoLayers& net, const Batch& batch) { return plain_loss(net, batch) * *factor; };
    run.between = at_step(8, [factor] { *factor = 0.5; });
  });
  add("ACoinAtEachStep", "tanh", [random = std::mt19937(3)](TwoLayers& net, const Batch& batch) mutable {
    at::Tensor hidden = net.a(batch["input"]);
    if (random() % 2 == 0) hidden = hidden.tanh();
    return loss_of(net, hidden, batch);
  });
  add("AMaskFilledByAccessor", {"numbers", 200},
      [random = std::mt19937(1)](TwoLayers& net, const Batch& batch) mutable {
        at::Tensor mask = torch::zeros({5});
        if (random() % 100 < 5) mask.accessor<float, 1>()[2] = 0.5F;
        return F::cross_entropy(net.forward(batch["input"]) + mask, batch["target"]);
      });
  add("ABranchOnTheBatch", {"", 200}, [](TwoLayers& net, const Batch& batch) {
    return noisy(net, batch, batch["target"].data_ptr<int64_t>()[0] == 3 && batch["input"].data_ptr<float>()[1] > 0.5F);
  });
  for (const bool is_const : {false, true}) {
    add(is_const ? "ABranchOnAConstPointer" : "ABranchOnAPointer", "address",
        [is_const](TwoLayers& net, const Batch& batch) {
          const at::Tensor hidden = net.a(batch["input"]);
          const float first = is_const ? *hidden.const_data_ptr<float>() : *hidden.data_ptr<float>();
          return loss_of(net, hidden, batch) * (first > 0.3F ? 2.0 : 1.0);
        });
  }
  add("ACounterAfterNumbersOfTheHost", "sin", [calls = 0](TwoLayers& net, const Batch& batch) mutable {
    const at::Tensor logits = net.forward(batch["input"]) + torch::arange(5) * 0.1;  // nothing holds these numbers
    return F::cross_entropy(++calls % 7 == 0 ? logits.sin() : logits, batch["target"]);
  });
  add("MaxPool1dBelowTheDispatcher", "address", [](TwoLayers& net, const Batch& batch) {
    at::Tensor pooled;
    {
      const torch::NoGradGuard no_grad;
      pooled = torch::max_pool1d(batch["input"].unsqueeze(0).tanh(), 2).squeeze(0);
    }
    return F::cross_entropy(net.forward(batch["input"]), batch["target"]) +
           net.a(batch["input"]).mean() * pooled.mean();
  });
}

}  // namespace duet::testing
