#include <random>
#include "tests/graph/trap.h"

namespace duet::testing {

namespace {

namespace F = torch::nn::functional;

// A net with a layer norm, batch norm and dropout of its own beside the two layers.
struct Extras {
  torch::nn::BatchNorm1d norm{8};
  torch::nn::Dropout dropout{0.5};
};

// `change` acts on the model before step 40.
std::function<TrapRun()> at_step_40(const std::function<void(TwoLayers&, Extras&)>& change) {
  return [change] {
    TrapRun run;
    auto extras = std::make_shared<Extras>();
    run.net->register_module("norm", extras->norm);
    run.net->register_module("dropout", extras->dropout);
    run.loss = [extras](TwoLayers& net, const Batch& batch) {
      return F::cross_entropy(net.b(extras->dropout(extras->norm(net.a(batch["input"])))), batch["target"]);
    };
    run.between = [change, extras, net = run.net](BaseTrainer&, int64_t n) {
      if (n == 40) change(*net, *extras);
    };
    return run;
  };
}

}  // namespace

void add_module_cases(Traps& add) {
  add.loss(
      "AnActivationReadByItsAddressBesideACounter",
      [] {
        return [calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
          const at::Tensor hidden = torch::relu(net.a(batch["input"]));
          const at::Tensor detached = hidden.detach();
          const double factor = 1 + 0.01 * static_cast<double>(++calls % 7) + detached.accessor<float, 2>()[0][0];
          return F::cross_entropy(net.b(hidden), batch["target"]) * factor;
        };
      },
      "by its address");
  add.loss(
      "ABufferReadByItsAddressBesideACounter",
      [] {
        return [mean = torch::zeros({1}), calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
          {
            const torch::NoGradGuard no_grad;
            mean.mul_(0.5).add_(batch["input"].mean());
          }
          const double factor = 1 + 0.01 * static_cast<double>(++calls % 7) + *mean.data_ptr<float>();
          return plain_loss(net, batch) * factor;
        };
      },
      "by its address");
  // Far enough for the checks to be rare.
  add.loss(
      "AScratchTensorFilledByItsAddress",
      [] {
        return [scratch = torch::zeros({8}), random = std::mt19937(5)](TwoLayers& net, const Batch& batch) mutable {
          for (int64_t i = 0; i < 8; ++i) scratch.data_ptr<float>()[i] = static_cast<float>(random() % 7) * 0.1F;
          return plain_loss(net, batch) * (1 + scratch.mean());
        };
      },
      "", 1500);
  add.traps.back().stays_captured = true;
  add.loss(
      "AScratchTensorFilledTwiceByItsAddress",
      [] {
        return [scratch = torch::zeros({8}), random = std::mt19937(5)](TwoLayers& net, const Batch& batch) mutable {
          at::Tensor loss = plain_loss(net, batch);
          for (int64_t time = 0; time < 2; ++time) {
            for (int64_t i = 0; i < 8; ++i) scratch.data_ptr<float>()[i] = static_cast<float>(random() % 7) * 0.1F;
            loss = loss * (1 + scratch.mean());
          }
          return loss;
        };
      },
      "by its address");
  add(
      "ABufferReadByItsAddressLater",
      [] {
        TrapRun run;
        run.net->register_buffer("mean", torch::zeros({1}));
        run.loss = [mean = run.net->named_buffers()["mean"], calls = int64_t{0}](TwoLayers& net,
                                                                                 const Batch& batch) mutable {
          {
            const torch::NoGradGuard no_grad;
            mean.mul_(0.5).add_(batch["input"].mean());
          }
          const at::Tensor loss = plain_loss(net, batch);
          if (++calls < 20 || mean.data_ptr<float>()[0] < 0) return loss;
          return loss + 0.1 * net.a->weight.square().sum();
        };
        return run;
      },
      "by its address");
  add(
      "RunningStatisticsReadByTheirAddress",
      [] {
        TrapRun run;
        const auto norm = std::make_shared<torch::nn::BatchNorm1dImpl>(8);
        run.loss = [norm](TwoLayers& net, const Batch& batch) {
          const at::Tensor hidden = norm->forward(net.a(batch["input"]));
          const double factor = 1 + norm->running_mean.const_data_ptr<float>()[0];
          return F::cross_entropy(net.b(hidden), batch["target"]) * factor;
        };
        return run;
      },
      "by its address");
  add.loss(
      "AWeightChangedByItsAddress",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          net.a->bias.data_ptr<float>()[0] *= 0.5F;
          return plain_loss(net, batch);
        };
      },
      "by its address");
  add.loss(
      "ABranchOnATensorThatTheStepChangesReadByItsAddress",
      [] {
        return [mean = torch::zeros({1}), calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
          {
            const torch::NoGradGuard no_grad;
            mean.mul_(0.5).add_(batch["input"].mean());
          }
          const at::Tensor loss = plain_loss(net, batch);
          if (++calls < 5 || mean.const_data_ptr<float>()[0] < 0) return loss;
          return loss + 0.1 * net.a->weight.square().sum();
        };
      },
      "by its address");
  add("BatchNormInEvalMode", at_step_40([](TwoLayers&, Extras& extras) { extras.norm->eval(); }));
  add("DropoutInEvalMode", at_step_40([](TwoLayers&, Extras& extras) { extras.dropout->eval(); }));
  add("AHookOnAWeight", at_step_40([](TwoLayers& net, Extras&) {
        net.a->weight.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
      }));
  add("AFrozenWeight", at_step_40([](TwoLayers& net, Extras&) { net.a->weight.requires_grad_(false); }));
  add("ADropoutRateSetByHand", at_step_40([](TwoLayers&, Extras& extras) { extras.dropout->options.p(0.1); }));
  add("AMomentumSetByHand", at_step_40([](TwoLayers&, Extras& extras) { extras.norm->options.momentum(0.5); }));
  add(
      "SwappedWeights",
      [] {
        TrapRun run;
        auto spare = std::make_shared<torch::nn::Linear>(8, 5);
        run.net->register_module("spare", *spare);
        run.loss = [spare](TwoLayers& net, const Batch& batch) {
          const at::Tensor hidden = torch::relu(net.a(batch["input"]));
          return F::cross_entropy(net.b(hidden), batch["target"]) + 0.1 * (*spare)(hidden).square().mean();
        };
        run.between = [spare, net = run.net](BaseTrainer&, int64_t n) {
          if (n == 40) std::swap(net->b->weight, (*spare)->weight);
        };
        return run;
      },
      "another tensor");
  add(
      "ClassWeightsAssignedAnew",
      [] {
        TrapRun run;
        auto weights = std::make_shared<at::Tensor>(torch::ones({5}));
        run.loss = [weights](TwoLayers& net, const Batch& batch) {
          return F::cross_entropy(net.forward(batch["input"]), batch["target"],
                                  F::CrossEntropyFuncOptions().weight(*weights));
        };
        run.between = [weights](BaseTrainer&, int64_t n) {
          if (n == 40) *weights = torch::arange(1, 6).to(at::kFloat);
        };
        return run;
      },
      "another tensor");
  add("ClassWeightsChangedInPlace", [] {
    TrapRun run;
    auto weights = std::make_shared<at::Tensor>(torch::ones({5}));
    run.loss = [weights](TwoLayers& net, const Batch& batch) {
      return F::cross_entropy(net.forward(batch["input"]), batch["target"],
                              F::CrossEntropyFuncOptions().weight(*weights));
    };
    run.between = [weights](BaseTrainer&, int64_t n) {
      if (n == 40) weights->mul_(3).add_(torch::arange(5));
    };
    return run;
  });
  add(
      "AnotherActivation",
      [] {
        TrapRun run;
        auto smooth = std::make_shared<bool>(false);
        run.loss = [smooth](TwoLayers& net, const Batch& batch) {
          const at::Tensor hidden = net.a(batch["input"]);
          return F::cross_entropy(net.b(*smooth ? torch::gelu(hidden) : torch::relu(hidden)), batch["target"]);
        };
        run.between = [smooth](BaseTrainer&, int64_t n) { *smooth = n >= 40; };
        return run;
      },
      "gelu");
  add("ALayerMoreFromStep40On", [] {
    TrapRun run;
    auto deep = std::make_shared<bool>(false);
    auto extra = std::make_shared<torch::nn::Linear>(8, 8);
    run.net->register_module("extra", *extra);
    run.loss = [deep, extra](TwoLayers& net, const Batch& batch) {
      at::Tensor hidden = torch::relu(net.a(batch["input"]));
      if (*deep) hidden = hidden + (*extra)(hidden);
      return F::cross_entropy(net.b(hidden), batch["target"]) + 1e-3 * (*extra)->weight.square().sum();
    };
    run.between = [deep](BaseTrainer&, int64_t n) { *deep = n >= 40; };
    return run;
  });
  add("TwoHeadsInTurn", [] {
    TrapRun run;
    auto other = std::make_shared<torch::nn::Linear>(8, 5);
    run.net->register_module("other", *other);
    run.loss = [other, calls = 0](TwoLayers& net, const Batch& batch) mutable {
      const at::Tensor hidden = torch::relu(net.a(batch["input"]));
      const at::Tensor logits = ++calls % 4 == 0 ? (*other)(hidden) : net.b(hidden);
      return F::cross_entropy(logits, batch["target"]) + 1e-3 * ((*other)->weight.sum() + net.b->weight.sum());
    };
    return run;
  });
  add("AnOptimizerNumberSetByHand", [] {
    TrapRun run;
    run.loss = plain_loss;
    run.between = [](BaseTrainer& trainer, int64_t n) {
      if (n == 40) trainer.hyper_parameters().set(0, "momentum", 0.5);
      if (n == 50) trainer.hyper_parameters().set(0, "lr", 0.01);
    };
    return run;
  });
  add(
      "AStepThatSometimesEndsEarlier",
      [] {
        struct Counting : Hook {
          explicit Counting(at::Tensor total) : total_(std::move(total)) {}
          std::string name() const override { return "counting"; }
          void in_step(StepView& view) override {
            if (calls_++ % 7 < 5) total_.add_(view.output.loss.detach());
          }
          at::Tensor total_;
          int64_t calls_ = 0;
        };
        TrapRun run;
        run.loss = plain_loss;
        const at::Tensor total = torch::zeros({});
        run.between = [total](BaseTrainer& trainer, int64_t n) {
          if (n == 0) trainer.add_hook(std::make_unique<Counting>(total));
        };
        run.seen = [total] { return std::vector<at::Tensor>{total}; };
        return run;
      },
      "the step ends, where");
  add(
      "TheLearningRateReadByHostCode",
      [] {
        TrapRun run;
        auto rate = std::make_shared<double>(1.0);
        run.loss = [rate](TwoLayers& net, const Batch& batch) { return plain_loss(net, batch) * *rate; };
        run.between = [rate](BaseTrainer& trainer, int64_t n) {
          if (n % 25 == 0) trainer.hyper_parameters().set(0, "lr", 0.05 / (1.0 + static_cast<double>(n)));
          *rate = 1.0 + trainer.hyper_parameters().get(0, "lr");
        };
        return run;
      },
      "mul");
  add(
      "AHookOnAnIntermediate",
      [] {
        TrapRun run;
        auto factor = std::make_shared<double>(1.0);
        run.loss = [factor](TwoLayers& net, const Batch& batch) {
          const at::Tensor hidden = net.a(batch["input"]);
          hidden.register_hook([factor](const at::Tensor& gradient) { return gradient * *factor; });
          return F::cross_entropy(net.b(hidden), batch["target"]);
        };
        run.between = [factor](BaseTrainer&, int64_t n) { *factor = n < 40 ? 1.0 : 0.5; };
        return run;
      },
      "mul");
  add("ACacheFilledAtFirstUse", [] {
    TrapRun run;
    auto cache = std::make_shared<at::Tensor>();
    run.loss = [cache, calls = 0](TwoLayers& net, const Batch& batch) mutable {
      if (++calls % 30 == 2) cache->reset();
      if (!cache->defined()) *cache = torch::arange(5).to(at::kFloat) * 0.1 * calls;
      return F::cross_entropy(net.forward(batch["input"]) + *cache, batch["target"]);
    };
    return run;
  });
  add(
      "ATensorMadeBetweenSteps",
      [] {
        TrapRun run;
        auto offset = std::make_shared<at::Tensor>(torch::zeros({5}));
        run.loss = [offset](TwoLayers& net, const Batch& batch) {
          return F::cross_entropy(net.forward(batch["input"]) + *offset, batch["target"]);
        };
        run.between = [offset](BaseTrainer&, int64_t n) { *offset = torch::full({5}, 0.01 * static_cast<double>(n)); };
        return run;
      },
      "another tensor");
  add("AParameterTakenByData", [] {
    TrapRun run;
    run.loss = plain_loss;
    run.between = [net = run.net](BaseTrainer&, int64_t n) {
      const torch::NoGradGuard no_grad;
      if (n == 40) net->a->weight.set_data(net->a->weight.detach().clone() * 0.5);
    };
    return run;
  });
  // Late: checks are rare by then.
  add(
      "ABufferTransposedInPlace",
      [] {
        TrapRun run;
        run.net->register_buffer("mix", torch::arange(64.0).view({8, 8}) * 0.01);
        const at::Tensor mix = run.net->named_buffers()["mix"];
        run.loss = [mix](TwoLayers& net, const Batch& batch) {
          return F::cross_entropy(net.b(torch::relu(net.a(batch["input"])).mm(mix)), batch["target"]);
        };
        run.between = [mix](BaseTrainer&, int64_t n) {
          if (n == 1400) at::Tensor(mix).t_();
        };
        return run;
      },
      "", 1500);
  add.traps.back().stays_captured = true;  // it is captured anew
}

}  // namespace duet::testing
