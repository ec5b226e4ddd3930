#include <future>
#include "tests/graph/trap.h"

// Tensors that outlive the step; the user sees those in `seen`.

namespace duet::testing {

namespace {

at::Tensor hidden_of(TwoLayers& net, const Batch& batch) { return torch::relu(net.a(batch["input"])); }

// Registers a hook before the first step.
auto hooked(HookPoint point, const std::function<void(TrainContext&)>& hook) {
  return [=](BaseTrainer& trainer, int64_t step) {
    if (step == 0) trainer.on(point, hook);
  };
}

// Keeps an activation in the member that is returned.
std::shared_ptr<at::Tensor> kept_activation(StepRun& run) {
  auto member = std::make_shared<at::Tensor>();
  run.loss = [member](TwoLayers& net, const Batch& batch) {
    const at::Tensor hidden = hidden_of(net, batch);
    *member = hidden.detach();
    return loss_of(net, hidden, batch);
  };
  return member;
}

void add_activations(Traps& add) {
  add("AnActivationInAMember", "", [](StepRun& run) {
    run.between = [member = kept_activation(run), seen = run.seen](BaseTrainer&, int64_t n) {
      if (n > 0) seen->push_back(member->clone());
    };
  });
  // max_pool1d works below the dispatcher and asks for the address of what it reads.
  add("AnActivationOfTheStepBeforeAndAnAddress", "reads what it has kept of its first run", [](StepRun& run) {
    run.loss = [last = torch::zeros({8, 8})](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::relu(net.a(batch["input"]) + 0.1 * last);
      last.set_data(hidden.detach());
      const at::Tensor pooled = torch::max_pool1d(last.unsqueeze(0), 3, 1, 1).squeeze(0);
      return loss_of(net, hidden + pooled, batch);
    };
  });
  add("ActivationsWithTheirGraph", "", [](StepRun& run) {
    run.loss = [seen = run.seen](TwoLayers& net, const Batch& batch) {
      seen->push_back(hidden_of(net, batch));
      if (seen->size() > 3) seen->erase(seen->begin());
      return loss_of(net, seen->back(), batch);
    };
  });
  add("StatisticsReadAfterBackward", "", [](StepRun& run) {
    run.between = hooked(HookPoint::kAfterBackward, [member = kept_activation(run), net = run.net](TrainContext&) {
      net->b->weight.grad().mul_(1 + member->mean().abs());  // as K-FAC scales gradients
    });
  });
  add("AThreadOfItsOwn", "", [](TwoLayers& net, const Batch& batch) {
    const at::Tensor logits = net.forward(batch["input"]);
    const at::Tensor penalty = std::async(std::launch::async, [&] { return logits.square().mean(); }).get();
    return F::cross_entropy(logits, batch["target"]) + 0.1 * penalty;
  });
}

void add_batches(Traps& add) {
  // Tensors that no op of the step reads.
  for (const int64_t first : {0, 700}) {
    add("SampleNumbersInAMember" + std::string(first == 0 ? "" : "FromSomeStepOn"), {"", 1300}, [first](StepRun& run) {
      const auto ids = std::make_shared<at::Tensor>();
      run.loss = [ids, first, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
        if (++calls > first) *ids = batch["id"];
        return plain_loss(net, batch);
      };
      run.between = [ids, seen = run.seen](BaseTrainer&, int64_t) {
        if (ids->defined()) seen->push_back(ids->clone());
      };
    });
  }
  add("TheBatchOfTheLastStep", "another tensor", [last = at::Tensor()](TwoLayers& net, const Batch& batch) mutable {
    at::Tensor loss = plain_loss(net, batch);
    if (last.defined()) loss = loss + 0.1 * (net.forward(batch["input"]) - net.forward(last)).square().mean();
    last = batch["input"];
    return loss;
  });
}

void add_gradients(Traps& add) {
  add("GradientsKeptByAHook", "", [](StepRun& run) {
    run.between = hooked(HookPoint::kAfterTrainIter, [seen = run.seen, net = run.net](TrainContext&) {
      seen->push_back(net->a->weight.grad());
      seen->push_back(net->b->weight.grad().detach()[0]);
    });
  });
  add("GradientsOfTwoSignaturesThatTakeTurns", captured(), [](StepRun& run) {
    run.batch = [](int64_t n) { return batch_at(n, n % 4 == 3 ? 5 : 8); };
    run.between = hooked(HookPoint::kAfterTrainIter, [seen = run.seen, net = run.net](TrainContext&) {
      for (const at::Tensor& parameter : net->parameters()) seen->push_back(parameter.grad().clone());
    });
  });
  add("MomentumOfTheUsers", "", [](StepRun& run) {
    run.between = hooked(HookPoint::kAfterBackward, [seen = run.seen, net = run.net](TrainContext&) {
      at::Tensor gradient = net->a->weight.grad();
      if (!seen->empty()) gradient.add_(seen->front(), 0.5);
      *seen = {gradient};
    });
  });
}

void add_carried_state(Traps& add) {
  add("HiddenStateCarriedOn", "", [](StepRun& run) {
    run.seen->push_back(torch::zeros({8, 8}));
    run.loss = [seen = run.seen](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::tanh(net.a(batch["input"]) + seen->front());
      seen->front() = hidden.detach();
      return loss_of(net, hidden, batch);
    };
  });
}

}  // namespace

void add_kept_cases(Traps& add) {
  add_activations(add);
  add_batches(add);
  add_gradients(add);
  add_carried_state(add);
}

}  // namespace duet::testing
