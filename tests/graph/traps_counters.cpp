#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>
#include <ATen/CPUGeneratorImpl.h>
#include "tests/graph/trap.h"

namespace duet::testing {

namespace {

namespace F = torch::nn::functional;

int64_t calls_of_all_time = 0;
thread_local int64_t calls_of_this_thread = 0;

at::Tensor noisy(TwoLayers& net, const Batch& batch, bool with_noise) {
  const at::Tensor loss = plain_loss(net, batch);
  return with_noise ? loss + 0.1 * net.a->weight.square().sum() : loss;
}

TrapLoss every(int64_t period) {
  return [period, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
    return noisy(net, batch, ++calls % period == 0);
  };
}

double drawn_by_hand(double low, double high) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const uint32_t number = at::check_generator<at::CPUGeneratorImpl>(generator)->random();
  return low + (high - low) * static_cast<double>(number % 1000) / 1000;
}

}  // namespace

void add_counter_cases(Traps& add) {
  for (const int64_t period : {2, 3, 5, 8, 16, 50, 100, 500, 1000}) {
    add.loss(
        "EveryCall" + std::to_string(period), [period] { return every(period); }, period < 8 ? "" : "pow",
        std::max<int64_t>(60, 2 * period + 20));
  }
  for (const int64_t first : {4, 20, 200, 900}) {
    add.loss(
        "FromCall" + std::to_string(first) + "On",
        [first] {
          return [first, calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
            return noisy(net, batch, ++calls > first);
          };
        },
        "", first + 60);
  }
  add.loss(
      "ADrawOfTheHostsFromTheDefaultGeneratorAtTimes",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          const at::Tensor hidden = torch::dropout(torch::relu(net.a(batch["input"])), 0.3, true);
          const at::Tensor loss = F::cross_entropy(net.b(hidden), batch["target"]);
          if (batch["input"].const_data_ptr<float>()[0] < 1.2F) return loss;
          return drawn_by_hand(0, 1) < 0.5 ? loss : loss + 0.1 * net.a->weight.square().sum();
        };
      },
      "draws from a random generator");
  add.loss(
      "ADrawOfTheHostsThatIsNotUsed",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          if (batch["input"].const_data_ptr<float>()[0] > 1.2F) drawn_by_hand(0, 1);
          const at::Tensor hidden = torch::dropout(torch::relu(net.a(batch["input"])), 0.3, true);
          return F::cross_entropy(net.b(hidden), batch["target"]);
        };
      },
      "draws from a random generator");
  add(
      "ANumberDrawnByHandBeforeASplitPoint",
      [] {
        const auto loss = [](TwoLayers& net, const Batch& batch) {
          const at::Tensor hidden = torch::dropout(torch::relu(net.a(batch["input"])), 0.3, true);
          return F::cross_entropy(net.b(hidden), batch["target"]) * drawn_by_hand(1.0, 2.0);
        };
        const auto add_hook = [](BaseTrainer& trainer, int64_t step) {
          if (step == 0) trainer.on(HookPoint::kAfterBackward, [](TrainContext&) {});
        };
        return TrapRun{.loss = loss, .between = add_hook};
      },
      "the host draws from the default random generator");
  add.loss(
      "AStateOfTheGeneratorThatIsPutBackFromSomeStepOn",
      [] {
        return [calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
          at::Generator generator = at::detail::getDefaultCPUGenerator();
          const at::Tensor state = generator.get_state();
          const at::Tensor hidden = torch::dropout(torch::relu(net.a(batch["input"])), 0.3, true);
          if (++calls > 20) generator.set_state(state);
          return F::cross_entropy(net.b(hidden), batch["target"]);
        };
      },
      "sets its state");
  // Where something else draws between the steps as well.
  const auto draws_between = [](BaseTrainer&, int64_t) { torch::randn({3}); };
  add(
      "ANumberDrawnByHandAfterRandomOps",
      [=] {
        const auto loss = [](TwoLayers& net, const Batch& batch) {
          const at::Tensor hidden = torch::dropout(torch::relu(net.a(batch["input"])), 0.3, true);
          return F::cross_entropy(net.b(hidden), batch["target"]) * drawn_by_hand(1.0, 2.0);
        };
        return TrapRun{.loss = loss, .between = draws_between};
      },
      "");
  for (const bool dropout : {false, true}) {
    add(
        std::string("ANumberDrawnByHandAndThrownAway") + (dropout ? "AfterRandomOps" : ""),
        [=] {
          const auto loss = [dropout](TwoLayers& net, const Batch& batch) {
            const at::Tensor hidden = torch::dropout(torch::relu(net.a(batch["input"])), 0.3, dropout);
            const at::Tensor loss = F::cross_entropy(net.b(hidden), batch["target"]);
            drawn_by_hand(0.0, 1.0);
            return loss;
          };
          auto last = std::make_shared<at::Tensor>();
          return TrapRun{.loss = loss,
                         .between = [last](BaseTrainer&, int64_t) { *last = torch::randn({3}); },
                         .seen = [last] { return std::vector<at::Tensor>{*last}; }};
        },
        "draws from", /*steps=*/1200);
  }
  add.loss("AGlobalCounter", [] {
    calls_of_all_time = 0;
    return [](TwoLayers& net, const Batch& batch) { return noisy(net, batch, ++calls_of_all_time % 7 == 0); };
  });
  add.loss("AThreadLocalCounter", [] {
    calls_of_this_thread = 0;
    return [](TwoLayers& net, const Batch& batch) { return noisy(net, batch, ++calls_of_this_thread % 11 == 0); };
  });
  add.loss(
      "ANumberThatDecays",
      [] {
        return [factor = 1.0](TwoLayers& net, const Batch& batch) mutable {
          factor *= 0.99;
          return plain_loss(net, batch) * factor;
        };
      },
      "other");
  add.loss(
      "ANumberInAnArgument",
      [] {
        return [calls = int64_t{0}](TwoLayers& net, const Batch& batch) mutable {
          const double slope = ++calls % 20 == 0 ? 0.2 : 0.1;
          return F::cross_entropy(net.b(torch::leaky_relu(net.a(batch["input"]), slope)), batch["target"]);
        };
      },
      "leaky_relu");
  add.loss(
      "StochasticDepth",
      [] {
        return [random = std::mt19937(3)](TwoLayers& net, const Batch& batch) mutable {
          at::Tensor hidden = net.a(batch["input"]);
          if (random() % 100 < 3) hidden = hidden + hidden.tanh();
          return F::cross_entropy(net.b(hidden), batch["target"]);
        };
      },
      "tanh", 200);
  add.loss(
      "ACoinAtEachStep",
      [] {
        return [random = std::mt19937(3)](TwoLayers& net, const Batch& batch) mutable {
          at::Tensor hidden = net.a(batch["input"]);
          if (random() % 2 == 0) hidden = hidden.tanh();
          return F::cross_entropy(net.b(hidden), batch["target"]);
        };
      },
      "tanh");
  add.loss(
      "ANumberDrawnAtEachStep",
      [] {
        return [random = std::mt19937(3)](TwoLayers& net, const Batch& batch) mutable {
          return plain_loss(net, batch) * (0.5 + std::uniform_real_distribution<double>()(random));
        };
      },
      "mul");
  add.loss(
      "ANumberDrawnFromLibTorch",
      [] { return [](TwoLayers& net, const Batch& batch) { return plain_loss(net, batch) * drawn_by_hand(1, 2); }; },
      "");
  add.loss(
      "ATensorOfHostNumbers",
      [] {
        return [calls = 0](TwoLayers& net, const Batch& batch) mutable {
          const at::Tensor scale = torch::tensor({1.0F, ++calls % 9 == 0 ? 2.0F : 1.0F, 1.0F, 1.0F, 1.0F});
          return F::cross_entropy(net.forward(batch["input"]) * scale, batch["target"]);
        };
      },
      "fill_");
  add.loss(
      "AMaskFilledByAccessor",
      [] {
        return [random = std::mt19937(1)](TwoLayers& net, const Batch& batch) mutable {
          at::Tensor mask = torch::zeros({5});
          if (random() % 100 < 5) mask.accessor<float, 1>()[2] = 0.5F;
          return F::cross_entropy(net.forward(batch["input"]) + mask, batch["target"]);
        };
      },
      "numbers", 200);
  add.loss(
      "ABranchOnTheBatch",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          return noisy(net, batch,
                       batch["target"].data_ptr<int64_t>()[0] == 3 && batch["input"].data_ptr<float>()[1] > 0.5F);
        };
      },
      "", 200);
  add.loss(
      "ABranchOnAnIntermediate",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          const at::Tensor hidden = net.a(batch["input"]);
          const double factor = hidden.data_ptr<float>()[0] > 0.3F ? 2.0 : 1.0;
          return F::cross_entropy(net.b(hidden), batch["target"]) * factor;
        };
      },
      "address");
  add.loss(
      "ABranchOnAConstPointer",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          const at::Tensor hidden = net.a(batch["input"]);
          const double factor = hidden.const_data_ptr<float>()[0] > 0.3F ? 2.0 : 1.0;
          return F::cross_entropy(net.b(hidden), batch["target"]) * factor;
        };
      },
      "address");
  add.loss(
      "ABranchOnAWeight",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          return noisy(net, batch, net.b->bias.data_ptr<float>()[0] > 0.05F);
        };
      },
      "", 200);
  add.loss("AnEnvironmentVariable", [] {
    return [calls = 0](TwoLayers& net, const Batch& batch) mutable {
      if (++calls == 30) setenv("DUET_TRAP", "1", 1);
      if (calls == 1) unsetenv("DUET_TRAP");
      return noisy(net, batch, std::getenv("DUET_TRAP") != nullptr);
    };
  });
  add.loss(
      "ACounterAfterNumbersOfTheHost",
      [] {
        return [calls = 0](TwoLayers& net, const Batch& batch) mutable {
          const at::Tensor logits =
              net.forward(batch["input"]) + torch::arange(5) * 0.1;  // nothing holds these numbers
          return F::cross_entropy(++calls % 7 == 0 ? logits.sin() : logits, batch["target"]);
        };
      },
      "sin");
  add.loss("ANumberOfTheHostReadBack", [] {
    return [](TwoLayers& net, const Batch& batch) {
      return plain_loss(net, batch) * torch::tensor({2.0F, 3.0F}).sum().item<float>();
    };
  });
  add("AFile", [] {
    TrapRun run;
    const std::string path = "/tmp/duet_trap_" + std::to_string(::getpid());
    std::remove(path.c_str());
    run.loss = [path](TwoLayers& net, const Batch& batch) { return noisy(net, batch, std::ifstream(path).good()); };
    run.between = [path](BaseTrainer&, int64_t n) {
      if (n == 25) std::ofstream(path) << "now";
    };
    run.seen = [path] {
      std::remove(path.c_str());
      return std::vector<at::Tensor>();
    };
    return run;
  });
  add("AClockOfTheUsers", [] {
    TrapRun run;
    auto clock = std::make_shared<int64_t>(0);
    run.loss = [clock](TwoLayers& net, const Batch& batch) { return noisy(net, batch, *clock > 33); };
    run.between = [clock](BaseTrainer&, int64_t n) { *clock = n; };
    return run;
  });
  add.loss(
      "MaxPool1dBelowTheDispatcher",
      [] {
        return [](TwoLayers& net, const Batch& batch) {
          at::Tensor pooled;
          {
            const torch::NoGradGuard no_grad;
            pooled = torch::max_pool1d(batch["input"].unsqueeze(0).tanh(), 2).squeeze(0);
          }
          return F::cross_entropy(net.forward(batch["input"]), batch["target"]) +
                 net.a(batch["input"]).mean() * pooled.mean();
        };
      },
      "address");
}

}  // namespace duet::testing
