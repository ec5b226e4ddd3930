#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "core/task.h"
#include "tests/graph/step_cases.h"
#include "tests/support/trainer_runs.h"

// 12 steps of a replayed step, never compared on the way, give the bits of 12 eager ones.

namespace duet {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;
using namespace testing;  // NOLINT: the cases' words
using ::testing::HasSubstr;

// Runs the body again in backward instead of keeping its activations.
struct Recompute : torch::autograd::Function<Recompute> {
  static Tensor body(const Tensor& x, const Tensor& w) { return torch::gelu(torch::tanh(x.matmul(w)).matmul(w.t())); }
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& w) {
    context->save_for_backward({x, w});
    return body(x, w);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::AutoGradMode with_grad(true);
    const Tensor x = saved[0].detach().requires_grad_(true);
    const Tensor w = saved[1].detach().requires_grad_(true);
    return torch::autograd::grad({body(x, w)}, {x, w}, {gradients[0]});
  }
};

// Autograd, layouts, what the step carries on, what it cannot do.
void add_step_cases(Cases& add) {
  // autograd
  add("GradientPenalty", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor x = batch["x"].detach().clone().requires_grad_(true);
      const Tensor y = n.b(torch::tanh(n.a(x)));
      const Tensor gradient = torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
      return F::cross_entropy(y, batch["target"]) + (gradient.norm(2, 1) - 1).square().mean();
    };
  });
  add("RecomputedForward", [](Model& m) -> Loss {
    const Tensor w = m.parameter("w", {16, 8});
    Base n(m);
    return [w, n](const Batch& batch) mutable -> Tensor {
      const Tensor x = batch["x"] + n.a->bias.sum();
      return F::cross_entropy(n.b(n.a(Recompute::apply(x, w))), batch["target"]);
    };
  });
  add("TensorHooksAndDetach", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      Tensor h = n.a(batch["x"]);
      h.register_hook([](const Tensor& gradient) { return gradient * 0.5 + gradient.sign() * 0.01; });
      const Tensor y = n.b(h);
      return F::cross_entropy(y + (y.round() - y).detach(), batch["target"]) + (y.detach() * y).mean();
    };
  });
  add(
      "TiedWeights",
      [](Model& m) -> Loss {
        auto words = m.module("words", torch::nn::Embedding(11, 8));
        const Tensor w = m.parameter("w", {8, 8});
        return [words, w](const Batch& batch) mutable -> Tensor {
          const Tensor h = torch::tanh(words(batch["x"]).matmul(w)).matmul(w.t()).matmul(w);
          return F::cross_entropy(h.matmul(words->weight.t()).flatten(0, 1), batch["x"].flatten());
        };
      },
      tokens);
  add("TheSameModuleTwiceAndAParameterAsLoss", [](Model& m) -> Loss {
    auto a = m.module("a", torch::nn::Linear(16, 16));
    const Tensor w = m.parameter("w", {});
    const Tensor v = m.parameter("v", {16});
    return [a, w, v](const Batch& batch) mutable -> Tensor {
      return (a(a(batch["x"])) * v).square().mean() * w + w + v.sum() + v[0];
    };
  });

  // shapes, layouts, dtypes
  add(
      "NonContiguousInput",
      [](Model& m) -> Loss {
        Base n(m);
        return [n](const Batch& batch) mutable -> Tensor {
          return F::cross_entropy(n.b(n.a(batch["x"]).relu()), batch["target"]);
        };
      },
      [](uint64_t seed) {
        const Batch plain = vectors(seed);
        return Batch{{"x", plain["x"].t().contiguous().t()},
                     {"target", plain["target"].repeat_interleave(2).slice(0, 0, 16, 2)}};
      });
  add(
      "ExpandedInput",
      [](Model& m) -> Loss {
        Base n(m);
        return [n](const Batch& batch) mutable -> Tensor {
          return F::cross_entropy(n.b(n.a(batch["x"]).relu()), batch["target"]);
        };
      },
      [](uint64_t seed) {
        const Batch plain = vectors(seed);
        return Batch{{"x", plain["x"].narrow(0, 0, 1).expand({8, 16})},
                     {"target", plain["target"].narrow(0, 0, 1).expand({8})}};
      });
  add(
      "ChannelsLastInput",
      [](Model& m) -> Loss {
        auto conv = m.module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 5, 3).padding(1)));
        auto norm = m.module("norm", torch::nn::BatchNorm2d(5));
        return [conv, norm](const Batch& batch) mutable -> Tensor {
          return F::cross_entropy(torch::max_pool2d(norm(conv(batch["x"])), 2).mean({2, 3}), batch["target"]);
        };
      },
      [](uint64_t seed) {
        const Batch plain = images(seed);
        return Batch{{"x", plain["x"].contiguous(at::MemoryFormat::ChannelsLast)}, {"target", plain["target"]}};
      });
  add(
      "ChannelsLastWeights",
      [](Model& m) -> Loss {
        auto conv = m.module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 5, 3)));
        conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
        return [conv](const Batch& batch) mutable -> Tensor {
          return F::cross_entropy(torch::relu(conv(batch["x"])).mean({2, 3}), batch["target"]);
        };
      },
      images);
  add("Float64", [](Model& m) -> Loss {
    Base n(m);
    m.to(at::kDouble);
    return [n](const Batch& batch) mutable -> Tensor {
      return F::cross_entropy(n.b(torch::gelu(n.a(batch["x"].to(at::kDouble)))), batch["target"]);
    };
  });
  add("Float64Accumulated", add.cases.back().make, vectors, 3);
  add("Bfloat16Parameters", [](Model& m) -> Loss {
    Base n(m);
    m.to(at::kBFloat16);
    return [n](const Batch& batch) mutable -> Tensor {
      return F::cross_entropy(n.b(torch::gelu(n.a(batch["x"].to(at::kBFloat16)))), batch["target"]);
    };
  });
  add("MixedDtypes", [](Model& m) -> Loss {
    Base n(m);
    n.a->to(at::kDouble);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor h = n.a(batch["x"].to(at::kDouble)).to(at::kFloat);
      return F::cross_entropy(n.b(h.to(at::kHalf).to(at::kFloat)), batch["target"]) * 2 +
             h.to(at::kLong).to(at::kFloat).mean();
    };
  });
  add("TensorsWithoutElements", [](Model& m) -> Loss {
    const Tensor none = m.parameter("none", {0, 4});
    Base n(m);
    return [none, n](const Batch& batch) mutable -> Tensor {
      const Tensor h = n.a(batch["x"]);
      const Tensor nothing = h.narrow(1, 0, 0);
      const Tensor y =
          torch::cat({h, nothing, torch::zeros({8, 0})}, 1) + none.sum() + nothing.sum() + torch::empty({0}).sum();
      return F::cross_entropy(n.b(y), batch["target"]);
    };
  });
  add("ReinterpretedBits", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      const Tensor bits = batch["x"].view(at::kInt).bitwise_and(0x7FFFFFFF).view(at::kFloat);
      return F::cross_entropy(n.b(n.a(bits)), batch["target"]);
    };
  });
  add(
      "Accumulated5",
      [](Model& m) -> Loss {
        Base n(m);
        auto norm = m.module("norm", torch::nn::BatchNorm1d(8));
        return [n, norm](const Batch& batch) mutable -> Tensor {
          return F::cross_entropy(n.b(torch::dropout(norm(n.a(batch["x"])), 0.3, true)), batch["target"]);
        };
      },
      vectors, 5);

  // what the step may carry from step to step
  add("OwnTensorChangedInPlace", [](Model& m) -> Loss {
    Base n(m);
    const Tensor count = torch::zeros({});
    const Tensor mean = torch::zeros({8});
    return [n, count, mean](const Batch& batch) mutable -> Tensor {
      const Tensor h = n.a(batch["x"]);
      {
        const at::NoGradGuard no_grad;
        count.add_(1);
        mean.lerp_(h.mean(0), 0.1);
      }
      return F::cross_entropy(n.b(h - mean.clone()), batch["target"]) * (1 + 0.01 * count.clone());
    };
  });
  add("OwnGenerator", [](Model& m) -> Loss {
    Base n(m);
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(77);
    return [n, generator](const Batch& batch) mutable -> Tensor {
      const Tensor h = n.a(batch["x"]) + torch::randn({8, 8}, generator) * 0.1;
      return F::cross_entropy(n.b(h), batch["target"]);
    };
  });
  add(
      "Quantile",
      [](Model& m) -> Loss {  // it checks its q, a constant, on the host
        Base n(m);
        return [n](const Batch& batch) mutable -> Tensor {
          return torch::quantile(n.b(n.a(batch["x"])), 0.3, 1).square().mean();
        };
      },
      vectors);

  // what cannot be captured says so
  add(
      "PackedSequence",
      [](Model& m) -> Loss {
        auto gru = m.module("gru", torch::nn::GRU(torch::nn::GRUOptions(4, 5)));
        return [gru](const Batch& batch) mutable -> Tensor {
          const Tensor lengths = batch["target"].slice(0, 0, 4).clamp_min(1);
          const auto packed = torch::nn::utils::rnn::pack_padded_sequence(batch["x"].view({8, 4, 4}), lengths, false,
                                                                          /*enforce_sorted=*/false);
          return std::get<1>(gru->forward_with_packed_input(packed)).square().mean();
        };
      },
      vectors, 1, "_pack_padded_sequence");
  add(
      "MaskedSelect",
      [](Model& m) -> Loss {
        Base n(m);
        return [n](const Batch& batch) mutable -> Tensor {
          return n.b(n.a(batch["x"])).masked_select(batch["target"].unsqueeze(1) > 1).mean();
        };
      },
      vectors, 1, "masked_select");
  add(
      "RepeatInterleave",
      [](Model& m) -> Loss {
        Base n(m);
        return [n](const Batch& batch) mutable -> Tensor {
          return n.b(n.a(batch["x"])).repeat_interleave(batch["target"] + 1, 0).square().mean();
        };
      },
      vectors, 1, "repeat_interleave");
  add(
      "MemoryOfTheHost",
      [](Model& m) -> Loss {
        Base n(m);
        return [n](const Batch& batch) mutable -> Tensor {
          const std::vector<float> factors = {1.0F, 2.0F, 0.5F, 1.5F, 1.0F};
          const Tensor scale = torch::from_blob(const_cast<float*>(factors.data()), {5}, at::kFloat).clone();
          return F::cross_entropy(n.b(n.a(batch["x"])) * scale, batch["target"]);
        };
      },
      vectors, 1, "does not own");
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    Cases add;
    add_tensor_cases(add);
    add_layer_cases(add);
    add_step_cases(add);
    return add.cases;
  }();
  return all;
}

struct Trace {
  std::vector<double> losses;
  StateDict state;
  std::vector<SignatureReport> report;
  std::string program;
};

Trace run(const Case& c, const std::string& mode, const GraphOptions& graph = {}) {
  seed_all(5);
  auto model = std::make_shared<Model>();
  const Loss loss = c.make(*model);
  TrainerOptions options;
  options.optimizer = AdamW{.lr = 1e-2};
  options.clip_grad = ClipNorm{1.0, 2.0};
  const auto trainer = testing::make_trainer(
      mode, make_task(model, [loss](Model&, const Batch& batch) { return loss(batch); }), options, graph);
  Trace result;
  for (uint64_t n = 0; n < 12; ++n) {
    std::vector<Batch> micro_batches;
    for (int64_t i = 0; i < c.accumulate; ++i) micro_batches.push_back(c.batch(100 * n + static_cast<uint64_t>(i)));
    result.losses.push_back(trainer->step(micro_batches).loss.item<double>());
  }
  result.state = trainer->state_dict();
  if (const auto* captured = dynamic_cast<GraphTrainer*>(trainer.get())) {
    result.report = captured->report();
    result.program = captured->program_text();
  }
  return result;
}

class StepProgramParity : public ::testing::TestWithParam<std::size_t> {};

TEST_P(StepProgramParity, GivesTheBitsOfEager) {
  const Case& c = cases()[GetParam()];
  const Trace eager = run(c, "eager");
  for (const double loss : eager.losses) ASSERT_FALSE(std::isnan(loss)) << "the test compares nothing";
  EXPECT_NE(eager.losses.front(), eager.losses.back());
  for (const int64_t verify_interval : {int64_t{0}, int64_t{1024}}) {  // never compared on the way; compared
    GraphOptions options;
    options.verify_interval = verify_interval;
    const Trace graph = run(c, "graph", options);
    EXPECT_EQ(eager.losses, graph.losses) << "verify_interval " << verify_interval;
    expect_same_bits(eager.state, graph.state);
    ASSERT_EQ(graph.report.size(), 1U);
    EXPECT_EQ(graph.report[0].state, c.reason.empty() ? "captured" : "eager") << graph.report[0].reason << "\n"
                                                                              << graph.program;
    EXPECT_THAT(graph.report[0].reason, HasSubstr(c.reason));
    EXPECT_EQ(graph.report[0].replays, c.reason.empty() ? 10 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Losses, StepProgramParity, ::testing::Range<std::size_t>(0, cases().size()),
                         [](const auto& info) { return cases()[info.param].name; });

}  // namespace
}  // namespace duet
