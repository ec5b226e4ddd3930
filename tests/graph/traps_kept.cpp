#include <future>
#include "tests/graph/trap.h"

namespace duet::testing {

namespace {

namespace F = torch::nn::functional;

using Kept = std::shared_ptr<std::vector<at::Tensor>>;

// What the user sees: the tensors that were kept, and copies that were made of them at each step.
std::function<std::vector<at::Tensor>()> all_of(const Kept& kept) {
  return [kept] { return *kept; };
}

}  // namespace

void add_kept_cases(Traps& add) {
  add("AnActivationInAMember", [] {
    TrapRun run;
    auto member = std::make_shared<at::Tensor>();
    auto seen = std::make_shared<std::vector<at::Tensor>>();
    run.loss = [member](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::relu(net.a(batch["input"]));
      *member = hidden.detach();
      return F::cross_entropy(net.b(hidden), batch["target"]);
    };
    run.between = [member, seen](BaseTrainer&, int64_t n) {
      if (n > 0) seen->push_back(member->clone());
    };
    run.seen = all_of(seen);
    return run;
  });
  // max_pool1d works below the dispatcher and asks for the address of what it reads.
  add.loss(
      "AnActivationOfTheStepBeforeAndAnAddress",
      [] {
        return [last = torch::zeros({8, 8})](TwoLayers& net, const Batch& batch) mutable {
          const at::Tensor hidden = torch::relu(net.a(batch["input"]) + 0.1 * last);
          last.set_data(hidden.detach());
          const at::Tensor pooled = torch::max_pool1d(last.unsqueeze(0), 3, 1, 1).squeeze(0);
          return F::cross_entropy(net.b(hidden + pooled), batch["target"]);
        };
      },
      "reads what it has kept of its first run");
  add("ActivationsInAList", [] {
    TrapRun run;
    auto list = std::make_shared<std::vector<at::Tensor>>();
    run.loss = [list](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::relu(net.a(batch["input"]));
      list->push_back(hidden.detach());
      return F::cross_entropy(net.b(hidden), batch["target"]);
    };
    run.seen = all_of(list);
    return run;
  });
  // Tensors that no op of the step reads.
  for (const int64_t first : {0, 700}) {
    add(
        "SampleNumbersInAMember" + std::string(first == 0 ? "" : "FromSomeStepOn"),
        [first] {
          TrapRun run;
          auto ids = std::make_shared<at::Tensor>();
          auto seen = std::make_shared<std::vector<at::Tensor>>();
          run.with_ids = true;
          run.loss = [ids, first, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
            if (++calls > first) *ids = batch["id"];
            return plain_loss(net, batch);
          };
          run.between = [ids, seen](BaseTrainer&, int64_t) {
            if (ids->defined()) seen->push_back(ids->clone());
          };
          run.seen = all_of(seen);
          return run;
        },
        "", /*steps=*/1300);
  }
  add("BatchesInAList", [] {
    TrapRun run;
    auto list = std::make_shared<std::vector<at::Tensor>>();
    run.loss = [list](TwoLayers& net, const Batch& batch) {
      list->push_back(batch["input"]);
      list->push_back(batch["input"].narrow(1, 2, 3));
      return plain_loss(net, batch);
    };
    run.seen = all_of(list);
    return run;
  });
  add(
      "TheBatchOfTheLastStep",
      [] {
        TrapRun run;
        run.loss = [last = at::Tensor()](TwoLayers& net, const Batch& batch) mutable {
          at::Tensor loss = plain_loss(net, batch);
          if (last.defined()) loss = loss + 0.1 * (net.forward(batch["input"]) - net.forward(last)).square().mean();
          last = batch["input"];
          return loss;
        };
        return run;
      },
      "another tensor");
  add("ActivationsWithTheirGraph", [] {
    TrapRun run;
    auto list = std::make_shared<std::vector<at::Tensor>>();
    run.loss = [list](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::relu(net.a(batch["input"]));
      list->push_back(hidden);
      if (list->size() > 3) list->erase(list->begin());
      return F::cross_entropy(net.b(hidden), batch["target"]);
    };
    run.seen = all_of(list);
    return run;
  });
  add("StatisticsReadByAHook", [] {
    TrapRun run;
    auto member = std::make_shared<at::Tensor>();
    auto average = std::make_shared<std::vector<at::Tensor>>(1, torch::zeros({8}));
    auto hooked = std::make_shared<bool>(false);
    run.loss = [member](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::relu(net.a(batch["input"]));
      *member = hidden.detach();
      return F::cross_entropy(net.b(hidden), batch["target"]);
    };
    run.between = [member, average, hooked](BaseTrainer& trainer, int64_t) {
      if (std::exchange(*hooked, true)) return;
      trainer.on(HookPoint::kAfterTrainIter,
                 [member, average](TrainContext&) { average->front().mul_(0.9).add_(member->mean(0), 0.1); });
    };
    run.seen = all_of(average);
    return run;
  });
  add("StatisticsReadAfterBackward", [] {
    TrapRun run;
    auto member = std::make_shared<at::Tensor>();
    auto hooked = std::make_shared<bool>(false);
    auto net = run.net;
    run.loss = [member](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::relu(net.a(batch["input"]));
      *member = hidden.detach();
      return F::cross_entropy(net.b(hidden), batch["target"]);
    };
    run.between = [member, hooked, net](BaseTrainer& trainer, int64_t) {
      if (std::exchange(*hooked, true)) return;
      trainer.on(HookPoint::kAfterBackward, [member, net](TrainContext&) {
        net->b->weight.grad().mul_(1 + member->mean().abs());  // as K-FAC scales gradients
      });
    };
    return run;
  });
  add("GradientsKeptByAHook", [] {
    TrapRun run;
    auto list = std::make_shared<std::vector<at::Tensor>>();
    auto hooked = std::make_shared<bool>(false);
    run.loss = plain_loss;
    run.between = [list, hooked, net = run.net](BaseTrainer& trainer, int64_t) {
      if (std::exchange(*hooked, true)) return;
      trainer.on(HookPoint::kAfterTrainIter, [list, net](TrainContext&) {
        list->push_back(net->a->weight.grad());
        list->push_back(net->b->weight.grad().detach()[0]);
      });
    };
    run.seen = all_of(list);
    return run;
  });
  add("MomentumOfTheUsers", [] {
    TrapRun run;
    auto momentum = std::make_shared<at::Tensor>();
    auto hooked = std::make_shared<bool>(false);
    run.loss = plain_loss;
    run.between = [momentum, hooked, net = run.net](BaseTrainer& trainer, int64_t) {
      if (std::exchange(*hooked, true)) return;
      trainer.on(HookPoint::kAfterBackward, [momentum, net](TrainContext&) {
        at::Tensor gradient = net->a->weight.grad();
        if (momentum->defined()) gradient.add_(*momentum, 0.5);
        *momentum = gradient;
      });
    };
    run.seen = [momentum] { return std::vector<at::Tensor>{*momentum}; };
    return run;
  });
  add("GradientsKeptByATensorHook", [] {
    TrapRun run;
    auto list = std::make_shared<std::vector<at::Tensor>>();
    run.net->a->weight.register_hook([list](const at::Tensor& gradient) { list->push_back(gradient); });
    run.loss = plain_loss;
    run.seen = all_of(list);
    return run;
  });
  add("HiddenStateCarriedOn", [] {
    TrapRun run;
    auto state = std::make_shared<at::Tensor>(torch::zeros({8, 8}));
    run.loss = [state](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::tanh(net.a(batch["input"]) + *state);
      *state = hidden.detach();
      return F::cross_entropy(net.b(hidden), batch["target"]);
    };
    run.seen = [state] { return std::vector<at::Tensor>{*state}; };
    return run;
  });
  add("HiddenStateCarriedInPlace", [] {
    TrapRun run;
    auto state = std::make_shared<at::Tensor>(torch::zeros({8, 8}));
    run.loss = [state](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::tanh(net.a(batch["input"]) + state->clone());
      {
        const torch::NoGradGuard no_grad;
        state->copy_(hidden);
      }
      return F::cross_entropy(net.b(hidden), batch["target"]);
    };
    run.seen = [state] { return std::vector<at::Tensor>{*state}; };
    return run;
  });
  add("ATensorOfTheLastStep", [] {
    TrapRun run;
    auto last = std::make_shared<at::Tensor>();
    run.loss = [last](TwoLayers& net, const Batch& batch) {
      const at::Tensor logits = net.forward(batch["input"]);
      at::Tensor loss = F::cross_entropy(logits, batch["target"]);
      if (last->defined()) loss = loss + 0.1 * (logits - *last).square().mean();
      *last = logits.detach();
      return loss;
    };
    return run;
  });
  add("LossesInAList", [] {
    TrapRun run;
    auto list = std::make_shared<std::vector<at::Tensor>>();
    run.loss = [list](TwoLayers& net, const Batch& batch) {
      list->push_back(plain_loss(net, batch));
      return list->back();
    };
    run.seen = all_of(list);
    return run;
  });
  add("HandlesOfWeights", [] {
    TrapRun run;
    auto list = std::make_shared<std::vector<at::Tensor>>();
    run.loss = plain_loss;
    run.between = [list, net = run.net](BaseTrainer&, int64_t) { list->push_back(net->a->weight); };
    run.seen = all_of(list);
    return run;
  });
  add("AThreadOfItsOwn", [] {
    TrapRun run;
    run.loss = [](TwoLayers& net, const Batch& batch) {
      const at::Tensor logits = net.forward(batch["input"]);
      const at::Tensor penalty = std::async(std::launch::async, [&] { return logits.square().mean(); }).get();
      return F::cross_entropy(logits, batch["target"]) + 0.1 * penalty;
    };
    return run;
  });
}

}  // namespace duet::testing
