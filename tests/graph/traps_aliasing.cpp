#include "tests/graph/trap.h"

namespace duet::testing {

namespace {

namespace F = torch::nn::functional;

at::Tensor loss_of(TwoLayers& net, const at::Tensor& input, const Batch& batch) {
  return F::cross_entropy(net.b(torch::relu(net.a(input))), batch["target"]);
}

// A ring of samples, of which the batch is a part: the loss writes `written` rows of it from `first` on, and reads the
// batch before or after that.
struct Ring {
  at::Tensor rows = torch::randn({64, 16});
  int64_t first = 0, written = 4;
  bool reads_after = true;
  bool is_buffer = false;
  int64_t shared_from = 0, shared_until = 1000;  // steps whose batch is part of it
};

std::function<TrapRun()> with_ring(const std::function<void(Ring&)>& set) {
  return [set] {
    TrapRun run;
    auto ring = std::make_shared<Ring>();
    set(*ring);
    if (ring->is_buffer) run.net->register_buffer("ring", ring->rows);
    run.batch = [ring](int64_t n) {
      Batch batch = batch_at(n % 97);
      const bool shares = n >= ring->shared_from && n < ring->shared_until;
      batch.set("input", shares ? ring->rows.narrow(0, 8, 8) : ring->rows.narrow(0, 8, 8).clone());
      return batch;
    };
    run.loss = [ring](TwoLayers& net, const Batch& batch) {
      const auto write = [&] {
        const torch::NoGradGuard no_grad;
        ring->rows.narrow(0, ring->first, ring->written).mul_(0.5).add_(batch["target"].to(torch::kFloat).mean());
      };
      if (ring->reads_after) write();
      const at::Tensor loss = loss_of(net, batch["input"].detach() * 1, batch);
      if (!ring->reads_after) write();
      return loss;
    };
    run.seen = [ring] { return std::vector<at::Tensor>{ring->rows}; };
    return run;
  };
}

constexpr const char* kShares = "shares memory";

}  // namespace

void add_aliasing_cases(Traps& add) {
  add("ABatchThatThePlainTensorBehindItOverwrites", with_ring([](Ring& ring) { ring.first = 8; }), kShares);
  add("ABatchThatABufferBehindItOverwrites", with_ring([](Ring& ring) { ring.first = 8, ring.is_buffer = true; }),
      kShares);
  add("ABatchThatIsOverwrittenInPart", with_ring([](Ring& ring) { ring.first = 6; }), kShares);
  add("ABatchThatIsOverwrittenByItsWholeRing", with_ring([](Ring& ring) { ring.written = 64; }), kShares);
  add("ABatchThatIsSharedFromStep30On", with_ring([](Ring& ring) { ring.first = 8, ring.shared_from = 30; }), kShares);
  add("ABatchThatIsSharedForTenSteps",
      with_ring([](Ring& ring) { ring.first = 8, ring.shared_from = 30, ring.shared_until = 40; }), kShares);
  add("ABatchThatIsSharedInTheFirstSteps", with_ring([](Ring& ring) { ring.first = 8, ring.shared_until = 5; }),
      kShares);
  add.traps.push_back(
      {"ABatchBesideTheRowsThatAreWritten", with_ring([](Ring& ring) { ring.first = 16; }), "", 60, true});
  add.traps.push_back({"ABatchThatIsReadBeforeItIsOverwritten",
                       with_ring([](Ring& ring) { ring.first = 8, ring.reads_after = false; }), "", 60, true});

  add(
      "ABatchThatIsABufferOfBatchNorm",
      [] {
        TrapRun run;
        torch::nn::BatchNorm1d norm(16);
        run.net->register_module("norm", norm);
        run.batch = [norm](int64_t n) mutable {
          Batch batch = batch_at(n % 97);
          batch.set("mean", norm->running_mean);
          return batch;
        };
        run.loss = [norm](TwoLayers& net, const Batch& batch) mutable {
          return loss_of(net, norm(batch["input"]) + batch["mean"], batch);
        };
        return run;
      },
      kShares);
  add(
      "ABatchOverTheSameMemoryByAnAddress",
      [] {
        TrapRun run;
        const auto memory = std::make_shared<std::vector<float>>(16, 1.0F);
        const at::Tensor state = torch::from_blob(memory->data(), {16}, [memory](void*) {});
        run.batch = [memory](int64_t n) {
          Batch batch = batch_at(n % 97);
          batch.set("scale", torch::from_blob(memory->data(), {16}, [memory](void*) {}));
          return batch;
        };
        run.loss = [state](TwoLayers& net, const Batch& batch) {
          {
            const torch::NoGradGuard no_grad;
            at::Tensor(state).mul_(0.99);
          }
          return loss_of(net, batch["input"] * batch["scale"], batch);
        };
        return run;
      },
      kShares);
  // The rows move on, as those of a queue do.
  add("AQueueWhoseRowsAreOtherTensorsEachTime", [] {
    TrapRun run;
    const auto rows = std::make_shared<std::vector<at::Tensor>>();
    for (int i = 0; i < 3; ++i) rows->push_back(torch::rand({16}));
    const auto step = std::make_shared<int64_t>(0);
    run.batch = [rows, step](int64_t n) {
      *step = n;
      Batch batch = batch_at(n % 97);
      batch.set("row", (*rows)[(n + (n / 20)) % 3]);
      return batch;
    };
    run.loss = [rows, step](TwoLayers& net, const Batch& batch) {
      {
        const torch::NoGradGuard no_grad;
        (*rows)[*step % 3].mul_(0.9).add_(0.01);
      }
      return loss_of(net, batch["input"] * batch["row"], batch);
    };
    return run;
  });
  add(
      "TwoInputsOfOneMemoryOfWhichOneIsWritten",
      [] {
        TrapRun run;
        run.batch = [](int64_t n) {
          Batch batch = batch_at(n % 97);
          const at::Tensor both = torch::full({16}, 1.0 + 0.01 * static_cast<double>(n % 7));
          batch.set("a", both);
          batch.set("b", both.view({16}));
          return batch;
        };
        run.loss = [](TwoLayers& net, const Batch& batch) {
          {
            const torch::NoGradGuard no_grad;
            at::Tensor(batch["a"]).mul_(0.5);
          }
          return loss_of(net, batch["input"] * batch["b"], batch);
        };
        return run;
      },
      "writes into the batch tensor 'a'");
  add("GradientsOfTheLastStepAsABatch", [] {
    TrapRun run;
    run.batch = [net = run.net](int64_t n) {
      Batch batch = batch_at(n % 97);
      const at::Tensor gradient = net->a->bias.grad();
      batch.set("gradient", gradient.defined() ? gradient : torch::zeros_like(net->a->bias).detach());
      return batch;
    };
    run.loss = [](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = torch::relu(net.a(batch["input"])) + batch["gradient"];
      return F::cross_entropy(net.b(hidden), batch["target"]);
    };
    return run;
  });
  add("AWeightAsABatch", [] {
    TrapRun run;
    run.batch = [net = run.net](int64_t n) {
      Batch batch = batch_at(n % 97);
      batch.set("bias", net->a->bias.detach());
      return batch;
    };
    run.loss = [](TwoLayers& net, const Batch& batch) {
      return F::cross_entropy(net.b(torch::relu(net.a(batch["input"])) + batch["bias"]), batch["target"]);
    };
    return run;
  });
}

}  // namespace duet::testing
