#include <future>
#include <torch/library.h>
#include "tests/graph/trap.h"

// What eager mode runs and a capture has stumbled over.

namespace duet::testing {

namespace {

// An op that keeps the table that it gives, as rotary embeddings do.
at::Tensor cached_table(const at::Tensor& like) {
  static const at::Tensor table = torch::arange(8).to(at::kFloat) * 0.1;
  return table.to(like.device());
}

int64_t rows_above(const at::Tensor& values, double limit) { return (values > limit).sum().item<int64_t>(); }

TORCH_LIBRARY_FRAGMENT(duet_traps, library) {
  library.def("cached_table(Tensor like) -> Tensor");
  library.def("rows_above(Tensor values, float limit) -> int");
  library.impl("cached_table", torch::dispatch(c10::DispatchKey::CPU, cached_table));
  library.impl("rows_above", torch::dispatch(c10::DispatchKey::CPU, rows_above));
}

at::Tensor call_cached_table(const at::Tensor& like) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("duet_traps::cached_table", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.call(like);
}

int64_t call_rows_above(const at::Tensor& values, double limit) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("duet_traps::rows_above", "")
                             .typed<int64_t(const at::Tensor&, double)>();
  return op.call(values, limit);
}

// Runs `part` without its graph and once more in backward, with the same random numbers, as checkpointing does.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->saved_data["random"] = at::detail::getDefaultCPUGenerator().get_state();
    context->save_for_backward({x});
    return torch::dropout(x.tanh(), 0.5, true);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const at::Tensor now = generator.get_state();
    generator.set_state(context->saved_data["random"].toTensor());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    at::Tensor y;
    {
      const at::AutoGradMode with_graph(true);
      y = torch::dropout(x.tanh(), 0.5, true);
    }
    generator.set_state(now);
    return {torch::autograd::grad({y}, {x}, {gradients[0]})[0]};
  }
};

}  // namespace

void add_crash_cases(Traps& add) {
  add("AnotherTrainerStepsInAThreadOfTheStep", "", [](StepRun& run) {
    const std::shared_ptr<BaseTrainer> inner =
        testing::make_trainer("graph", make_task(std::make_shared<TwoLayers>(), plain_loss));
    run.loss = [inner](TwoLayers& net, const Batch& batch) {
      std::async(std::launch::async, [&] { inner->step(batch); }).get();
      return plain_loss(net, batch);
    };
  });
  add("ATableThatAnOpKeeps", "", [](TwoLayers& net, const Batch& batch) {
    const at::Tensor hidden = torch::relu(net.a(batch["input"]));
    return F::cross_entropy(net.b(hidden + call_cached_table(hidden.detach())), batch["target"]);
  });
  add("ANumberFromAnOp", "gives a number", [](TwoLayers& net, const Batch& batch) {
    const at::Tensor hidden = torch::relu(net.a(batch["input"]));
    const auto rows = static_cast<double>(call_rows_above(batch["input"], 1.0));
    return loss_of(net, hidden, batch) * (1 + 0.01 * rows);
  });
  add("AnOpThatThrows", "goes on after aten::mm has thrown", [](StepRun& run) {
    run.graph = {.check = Check::kOff};
    run.loss = [](TwoLayers& net, const Batch& batch) {
      try {
        return batch["input"].mm(net.a->weight).sum();
      } catch (const std::exception&) {
        return plain_loss(net, batch);
      }
    };
  });
  add("APackedSequence", "_pack_padded_sequence", [](StepRun& run) {
    const auto gru = std::make_shared<torch::nn::GRU>(torch::nn::GRUOptions(2, 5).batch_first(true));
    run.net->register_module("gru", *gru);
    run.loss = [gru](TwoLayers& net, const Batch& batch) {
      const at::Tensor lengths = batch["target"] + 1;
      const auto packed =
          torch::nn::utils::rnn::pack_padded_sequence(batch["input"].view({-1, 8, 2}), lengths, true, false);
      return plain_loss(net, batch) + std::get<1>((*gru)->forward_with_packed_input(packed)).square().mean();
    };
  });
  add("AnOpThatCallsOpsUnderAutocast", captured(), [](StepRun& run) {
    run.options.amp = at::kBFloat16;
    run.graph = {.check = Check::kOff, .verify_interval = 0};
    run.loss = [](TwoLayers& net, const Batch& batch) {
      const at::Tensor inverse = at::linalg_pinv(batch["input"].narrow(1, 0, 8) + 2 * torch::eye(8), 1e-6);
      return plain_loss(net, batch) + net.a(batch["input"]).matmul(inverse).tanh().square().mean();
    };
  });
  // As torch::batch_norm() is called by functional code.
  add("StatisticsThatAreNoBuffers", captured(), [](StepRun& run) {
    *run.seen = {torch::zeros({8}), torch::ones({8})};
    run.loss = [seen = run.seen](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = net.a(batch["input"]);
      return loss_of(net, torch::batch_norm(hidden, {}, {}, (*seen)[0], (*seen)[1], true, 0.1, 1e-5, false), batch);
    };
  });
  add("AConjugatedTensor", "", [](TwoLayers& net, const Batch& batch) {
    const at::Tensor spectrum = torch::fft_fft(net.a(batch["input"]));
    return F::cross_entropy(net.b(torch::real(spectrum * spectrum.conj()).sqrt()), batch["target"]);
  });
  add("CheckpointingThatRestoresTheGenerator", "random generator", [](TwoLayers& net, const Batch& batch) {
    return F::cross_entropy(net.b(Checkpointed::apply(net.a(batch["input"]))), batch["target"]);
  });
  add("TwoBuffersOverOneMemory", "", [](StepRun& run) {
    const at::Tensor left = run.net->register_buffer("left", torch::zeros({8}));
    run.net->register_buffer("right", left.view({2, 4}));
    run.loss = [left](TwoLayers& net, const Batch& batch) {
      const at::Tensor hidden = net.a(batch["input"]);
      {
        const torch::NoGradGuard no_grad;
        left.mul_(0.9).add_(hidden.mean(0), 0.1);
      }
      return F::cross_entropy(net.b(hidden - left), batch["target"]);
    };
  });
  add("TwoTrainersOfOneModule", "", [](StepRun& run) {
    auto other = std::make_shared<std::unique_ptr<BaseTrainer>>();
    run.between = [other, net = run.net](BaseTrainer& trainer, int64_t n) {
      if (!*other)
        *other = make_trainer(to_string(trainer.mode()), make_task(net, plain_loss), {.optimizer = AdamW{.lr = 1e-3}});
      if (n % 3 == 1) (*other)->step(batch_at(n + 7));
    };
  });
}

}  // namespace duet::testing
