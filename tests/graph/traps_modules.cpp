#include <random>
#include "data/data_loader.h"
#include "data/dataset.h"
#include "tests/graph/trap.h"

// Modules, parameters and hooks that change, and memory that host code reads by its address.

namespace duet::testing {

namespace {

// Batch norm beside the two layers; `change` acts on the model before step 40.
MakeRun at_step_40(const std::function<void(TwoLayers& net, torch::nn::BatchNorm1d& norm)>& change) {
  return [change](StepRun& run) {
    const auto norm = std::make_shared<torch::nn::BatchNorm1d>(8);
    run.net->register_module("norm", *norm);
    run.loss = [norm](TwoLayers& net, const Batch& batch) {
      return loss_of(net, (*norm)(net.a(batch["input"])), batch);
    };
    run.between = at_step(40, [change, norm, net = run.net] { change(*net, *norm); });
  };
}

void update(const at::Tensor& mean, const Batch& batch) {
  const torch::NoGradGuard no_grad;
  mean.mul_(0.5).add_(batch["input"].mean());
}

void fill(const at::Tensor& scratch, std::mt19937& random) {
  for (int64_t i = 0; i < 8; ++i) scratch.data_ptr<float>()[i] = static_cast<float>(random() % 7) * 0.1F;
}

void add_addresses(Traps& add) {
  constexpr const char* kByAddress = "by its address";
  // Far enough for the checks to be rare.
  add("AScratchTensorFilledByItsAddress", captured(1500), [](StepRun& run) {
    run.loss = [scratch = torch::zeros({8}), random = std::mt19937(5)](TwoLayers& net, const Batch& batch) mutable {
      fill(scratch, random);
      return plain_loss(net, batch) * (1 + scratch.mean());
    };
  });
  add("ABufferReadByItsAddressLater", kByAddress, [](StepRun& run) {
    const at::Tensor mean = run.net->register_buffer("mean", torch::zeros({1}));
    run.loss = [mean, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
      update(mean, batch);
      return noisy(net, batch, ++calls >= 20 && mean.data_ptr<float>()[0] >= 0);
    };
  });
  add("AWeightChangedByItsAddress", kByAddress, [](TwoLayers& net, const Batch& batch) {
    net.a->bias.data_ptr<float>()[0] *= 0.5F;
    return plain_loss(net, batch);
  });
}

void add_changed_modules(Traps& add) {
  add("BatchNormInEvalMode", "", at_step_40([](TwoLayers&, torch::nn::BatchNorm1d& norm) { norm->eval(); }));
  add("AHookOnAWeight", "", at_step_40([](TwoLayers& net, torch::nn::BatchNorm1d&) {
        net.a->weight.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
      }));
  add("AFrozenWeight", "",
      at_step_40([](TwoLayers& net, torch::nn::BatchNorm1d&) { net.a->weight.requires_grad_(false); }));
  add("AParameterTakenByData", captured(), [](StepRun& run) {  // anew
    run.between = at_step(40, [net = run.net] {
      const torch::NoGradGuard no_grad;
      net->a->weight.set_data(net->a->weight.detach().clone() * 0.5);
    });
  });
  // The forward pass now uses a tensor that no optimizer knows.
  add("AParameterThatTheModuleLetGoOf", "another tensor", [](StepRun& run) {
    const at::Tensor fresh = torch::full({8, 16}, 0.1, torch::requires_grad());
    run.between = at_step(12, [fresh, net = run.net] { net->a->weight = fresh; });
  });
  add("ASwappedGradient", captured(), [](StepRun& run) {  // which the next step overwrites
    run.between = at_step(10, [net = run.net] { net->a->weight.mutable_grad() = torch::full({8, 16}, 100.0); });
  });
}

void add_changed_code(Traps& add) {
  add("AnotherActivation", "gelu", [](StepRun& run) {
    const auto smooth = std::make_shared<bool>(false);
    run.loss = [smooth](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = net.a(batch["input"]);
      return loss_of(net, *smooth ? torch::gelu(hidden) : torch::relu(hidden), batch);
    };
    run.between = at_step(40, [smooth] { *smooth = true; });
  });
  for (const bool in_key : {false, true}) {
    add(in_key ? "TwoHeadsNamedInGraphKey" : "TwoHeadsInTurn", in_key ? captured() : "", [in_key](StepRun& run) {
      const auto other = std::make_shared<torch::nn::Linear>(8, 5);
      run.net->register_module("other", *other);
      const auto step = std::make_shared<int64_t>(0);
      run.loss = [other, step](TwoLayers& net, const Batch& batch) {
        const at::Tensor hidden = torch::relu(net.a(batch["input"]));
        const at::Tensor logits = *step % 4 == 3 ? (*other)(hidden) : net.b(hidden);
        return F::cross_entropy(logits, batch["target"]) + 1e-3 * ((*other)->weight.sum() + net.b->weight.sum());
      };
      run.between = [step](BaseTrainer&, int64_t n) { *step = n; };
      if (in_key) run.graph_key = [step] { return *step % 4 == 3 ? "other" : "own"; };
    });
  }
  add("AValidationBetweenSteps", "", [](StepRun& run) {
    const auto dropout = std::make_shared<torch::nn::Dropout>(0.3);
    run.net->register_module("dropout", *dropout);
    run.loss = [dropout](TwoLayers& net, const Batch& batch) {
      return loss_of(net, (*dropout)(torch::relu(net.a(batch["input"]))), batch);
    };
    run.between = [](BaseTrainer& trainer, int64_t n) {
      DataLoader data(std::make_shared<TensorDataset>(batch_at(99).items()), DataLoaderOptions{.batch_size = 8});
      if (n % 5 == 4) trainer.validate(data);
    };
  });
}

void add_changed_tensors(Traps& add) {
  add("ATensorMadeBetweenSteps", "another tensor", [](StepRun& run) {
    const auto offset = std::make_shared<at::Tensor>(torch::zeros({5}));
    run.loss = [offset](TwoLayers& net, const Batch& batch) {
      return F::cross_entropy(net.forward(batch["input"]) + *offset, batch["target"]);
    };
    run.between = [offset](BaseTrainer&, int64_t n) { *offset = torch::full({5}, 0.01 * static_cast<double>(n)); };
  });
  // Late: checks are rare by then. It is captured anew.
  add("ABufferTransposedInPlace", captured(1500), [](StepRun& run) {
    const at::Tensor mix = run.net->register_buffer("mix", torch::arange(64.0).view({8, 8}) * 0.01);
    run.loss = [mix](TwoLayers& net, const Batch& batch) {
      return loss_of(net, torch::relu(net.a(batch["input"])).mm(mix), batch);
    };
    run.between = at_step(1400, [mix] { at::Tensor(mix).t_(); });
  });
}

// Adds up losses in the step, at most calls.
struct Counting : Hook {
  explicit Counting(at::Tensor total) : total_(std::move(total)) {}
  std::string name() const override { return "counting"; }
  void in_step(StepView& view) override {
    if (calls_++ % 7 < 5) total_.add_(view.output.loss.detach());
  }
  at::Tensor total_;
  int64_t calls_ = 0;
};

void add_hooks_and_numbers(Traps& add) {
  add("SparseGradients", "parse", [](StepRun& run) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 8).sparse(true));
    run.net->register_module("table", table);
    run.options.optimizer = SparseAdam{.lr = 0.01};
    run.loss = [table](TwoLayers& net, const Batch& batch) mutable {
      return loss_of(net, torch::relu(net.a(batch["input"]) + table(batch["target"])), batch);
    };
  });
  add("AStepThatSometimesEndsEarlier", "the step ends, where", [](StepRun& run) {
    run.seen->push_back(torch::zeros({}));
    run.between = [total = run.seen->front()](BaseTrainer& trainer, int64_t n) {
      if (n == 0) trainer.add_hook(std::make_unique<Counting>(total));
    };
  });
  add("AHookOnAnIntermediate", "mul", [](StepRun& run) {
    const auto factor = std::make_shared<double>(1.0);
    run.loss = [factor](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = net.a(batch["input"]);
      hidden.register_hook([factor](const at::Tensor& gradient) { return gradient * *factor; });
      return loss_of(net, hidden, batch);
    };
    run.between = at_step(40, [factor] { *factor = 0.5; });
  });
}

}  // namespace

void add_module_cases(Traps& add) {
  add_addresses(add);
  add_changed_modules(add);
  add_changed_code(add);
  add_changed_tensors(add);
  add_hooks_and_numbers(add);
}

}  // namespace duet::testing
