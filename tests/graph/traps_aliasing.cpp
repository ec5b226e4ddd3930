#include "tests/graph/trap.h"

// Batches that share memory with what the step writes.

namespace duet::testing {

namespace {

constexpr const char* kShares = "shares memory";

at::Tensor relu_loss(TwoLayers& net, const at::Tensor& input, const Batch& batch) {
  return loss_of(net, torch::relu(net.a(input)), batch);
}

// The ordinary batches with one tensor more.
auto batch_with(const std::string& name, std::function<at::Tensor(int64_t step)> tensor) {
  return [name, tensor = std::move(tensor)](int64_t n) {
    Batch batch = batch_at(n % 97);
    batch.set(name, tensor(n));
    return batch;
  };
}

// A ring of samples, of which the batch is a part: the loss writes `written` rows of it from `first` on, and reads the
// batch before or after that.
struct Ring {
  int64_t first = 8, written = 4;
  bool reads_after = true;
  bool is_buffer = false;
  int64_t shared_from = 0, shared_until = 1000;  // steps whose batch is part of it
};

MakeRun with_ring(const Ring& ring) {
  return [ring](StepRun& run) {
    const at::Tensor rows = torch::randn({64, 16});
    run.seen->push_back(rows);
    if (ring.is_buffer) run.net->register_buffer("ring", rows);
    run.batch = batch_with("input", [ring, rows](int64_t n) {
      const bool shares = n >= ring.shared_from && n < ring.shared_until;
      return shares ? rows.narrow(0, 8, 8) : rows.narrow(0, 8, 8).clone();
    });
    run.loss = [ring, rows](TwoLayers& net, const Batch& batch) {
      const auto write = [&] {
        const torch::NoGradGuard no_grad;
        rows.narrow(0, ring.first, ring.written).mul_(0.5).add_(batch["target"].to(torch::kFloat).mean());
      };
      if (ring.reads_after) write();
      const at::Tensor loss = relu_loss(net, batch["input"].detach() * 1, batch);
      if (!ring.reads_after) write();
      return loss;
    };
  };
}

}  // namespace

void add_aliasing_cases(Traps& add) {
  add("ABatchThatThePlainTensorBehindItOverwrites", kShares, with_ring({}));
  add("ABatchThatABufferBehindItOverwrites", kShares, with_ring({.is_buffer = true}));
  add("ABatchThatIsOverwrittenByItsWholeRing", kShares, with_ring({.first = 0, .written = 64}));
  add("ABatchThatIsSharedForTenSteps", kShares, with_ring({.shared_from = 30, .shared_until = 40}));
  add("ABatchBesideTheRowsThatAreWritten", captured(), with_ring({.first = 16}));
  add("ABatchThatIsReadBeforeItIsOverwritten", captured(), with_ring({.reads_after = false}));
  add("ABatchThatIsABufferOfBatchNorm", kShares, [](StepRun& run) {
    torch::nn::BatchNorm1d norm(16);
    run.net->register_module("norm", norm);
    run.batch = batch_with("mean", [norm](int64_t) { return norm->running_mean; });
    run.loss = [norm](TwoLayers& net, const Batch& batch) mutable {
      return relu_loss(net, norm(batch["input"]) + batch["mean"], batch);
    };
  });
  add("ABatchOverTheSameMemoryByAnAddress", kShares, [](StepRun& run) {
    const auto memory = std::make_shared<std::vector<float>>(16, 1.0F);
    const auto over_it = [memory] { return torch::from_blob(memory->data(), {16}, [memory](void*) {}); };
    run.batch = batch_with("scale", [over_it](int64_t) { return over_it(); });
    run.loss = [state = over_it()](TwoLayers& net, const Batch& batch) {
      state.detach().mul_(0.99);
      return relu_loss(net, batch["input"] * batch["scale"], batch);
    };
  });
  // The rows move on, as those of a queue do.
  add("AQueueWhoseRowsAreOtherTensorsEachTime", "", [](StepRun& run) {
    const std::vector<at::Tensor> rows = {torch::rand({16}), torch::rand({16}), torch::rand({16})};
    const auto step = std::make_shared<int64_t>(0);
    run.batch = batch_with("row", [rows, step](int64_t n) {
      *step = n;
      return rows[static_cast<std::size_t>(n + (n / 20)) % 3];
    });
    run.loss = [rows, step](TwoLayers& net, const Batch& batch) {
      rows[static_cast<std::size_t>(*step % 3)].detach().mul_(0.9).add_(0.01);
      return relu_loss(net, batch["input"] * batch["row"], batch);
    };
  });
  add("TwoInputsOfOneMemoryOfWhichOneIsWritten", "writes into the batch tensor 'a'", [](StepRun& run) {
    run.batch = [](int64_t n) {
      Batch batch = batch_at(n % 97);
      batch.set("a", torch::full({16}, 1.0 + 0.01 * static_cast<double>(n % 7)));
      batch.set("b", batch["a"].view({16}));
      return batch;
    };
    run.loss = [](TwoLayers& net, const Batch& batch) {
      batch["a"].detach().mul_(0.5);
      return relu_loss(net, batch["input"] * batch["b"], batch);
    };
  });
  // What has no plain memory, and no stand-in.
  const at::Tensor waves = torch::complex(torch::ones({8, 16}), torch::arange(16) * torch::ones({8, 1}) * 0.1).conj();
  for (const bool sparse : {false, true}) {
    add(sparse ? "ASparseBatch" : "AConjugatedBatch", "the batch's 'odd'", [=](StepRun& run) {
      const at::Tensor odd = sparse ? torch::eye(8, 16).to_sparse() : waves;
      run.batch = batch_with("odd", [odd](int64_t) { return odd; });
      run.loss = [sparse](TwoLayers& net, const Batch& batch) {
        const at::Tensor input = sparse ? batch["odd"].to_dense() : at::real(batch["odd"] * batch["odd"]);
        return relu_loss(net, input, batch);
      };
    });
  }
}

}  // namespace duet::testing
