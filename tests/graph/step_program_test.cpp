#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <duet/core/error.h>
#include <duet/core/module_task.h>

#include "../support/trainer_runs.h"

#include <torch/torch.h>

// What real models do inside a step, each as one small loss: 12 updates of a replayed step, never compared on the way,
// give the bits of 12 eager ones.

namespace duet {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;
using testing::expect_same_bits;
using testing::same_bits;
using ::testing::HasSubstr;

struct Model : torch::nn::Module {
  Tensor parameter(const std::string& name, at::IntArrayRef sizes, at::TensorOptions options = {}) {
    return register_parameter(name, torch::randn(sizes, options) * 0.3);
  }
  template <class Holder>
  Holder module(const std::string& name, Holder holder) {
    return register_module(name, holder);
  }
};

using Loss = std::function<Tensor(const Batch&)>;
using Make = std::function<Loss(Model&)>;
using MakeBatch = std::function<Batch(uint64_t seed)>;

Batch vectors(uint64_t seed) {
  at::Generator g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"x", torch::randn({8, 16}, g)}, {"target", torch::randint(5, {8}, g, torch::kInt64)}};
}

Batch images(uint64_t seed) {
  at::Generator g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"x", torch::randn({4, 4, 9, 9}, g)}, {"target", torch::randint(5, {4}, g, torch::kInt64)}};
}

Batch tokens(uint64_t seed) {
  at::Generator g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"x", torch::randint(11, {4, 6}, g, torch::kInt64)}, {"target", torch::randint(5, {4}, g, torch::kInt64)}};
}

struct Case {
  std::string name;
  Make make;
  MakeBatch batch = vectors;
  int64_t accumulate = 1;
  std::string reason{};  // why it runs eager; empty: it is captured
};

// Every parameter of the model must take part in the loss; most losses start from this.
struct Base {
  torch::nn::Linear a{nullptr}, b{nullptr};
  explicit Base(Model& m, int64_t in = 16, int64_t out = 5)
      : a(m.module("a", torch::nn::Linear(in, 8))), b(m.module("b", torch::nn::Linear(8, out))) {}
};

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

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> list;
    const auto add = [&list](const std::string& name, const Make& make, const MakeBatch& batch = vectors, int64_t accumulate = 1,
                             const std::string& reason = "") { list.push_back({name, make, batch, accumulate, reason}); };

    // views and aliases
    add("ViewsOfInputs", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor x = batch["x"];
        const Tensor y = x.view({8, 4, 4}).transpose(1, 2).reshape({8, 16}) + x.flip(1).narrow(0, 0, 8);
        const Tensor z = x.t().slice(1, 0, 8, 2).t().repeat({2, 1});
        return F::cross_entropy(n.b(torch::relu(n.a(y + z))), batch["target"]);
      };
    });
    add("AliasingOutputs", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor h = n.a(batch["x"]);
        const auto chunks = h.chunk(2, 1);
        const auto splits = h.split_with_sizes({1, 3, 4}, 1);
        const auto rows = h.unbind(0);
        const Tensor mixed = torch::cat({chunks[1], chunks[0]}, 1) + splits[0].expand({8, 8}) + rows[3].expand_as(h) +
                             h.diagonal().unsqueeze(0) + torch::stack(h.unbind(1), 1) + h.as_strided({8, 8}, {1, 8});
        return F::cross_entropy(n.b(mixed), batch["target"]);
      };
    });
    add("InPlaceOnActivations", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        Tensor h = n.a(batch["x"]);
        h.mul_(2).add_(1);
        h = h.relu_() * 1;
        h.narrow(1, 0, 4).mul_(0.5);
        h[2].add_(1);
        h.view({4, 2, 8}).select(1, 1).sub_(0.25);
        return F::cross_entropy(n.b(h), batch["target"]);
      };
    });
    add("InPlaceViewChanges", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        Tensor h = n.a(batch["x"]) * 1;
        h.unsqueeze_(0);
        h.transpose_(1, 2);
        h.squeeze_(0);
        h.t_();
        const Tensor constant = torch::tensor({1.0F, 2.0F, 3.0F}).unsqueeze_(1);
        h = h * constant.sum();
        Tensor y = batch["x"].clone();
        const Tensor before = y.sum(0).slice(0, 0, 5);
        y.t_();
        y = y.narrow(0, 0, 5).sum(1) + before;
        return F::cross_entropy(n.b(h) + y, batch["target"]);
      };
    });
    add("OutIntoEmptyTensors", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        Tensor sum = torch::empty({0});
        Tensor product = torch::empty({0});
        {
          const at::NoGradGuard no_grad;
          at::add_out(sum, batch["x"], batch["x"]);
          at::matmul_out(product, batch["x"], sum.t());
        }
        return F::cross_entropy(n.b(n.a(sum)) * product.mean(), batch["target"]);
      };
    });
    add("Resize", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        Tensor buffer = torch::empty({2});
        buffer.resize_({8, 16}).copy_(batch["x"]).mul_(2);
        return F::cross_entropy(n.b(n.a(buffer)), batch["target"]);
      };
    });

    // tensors made inside the loss
    add("HostConstants", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor weights = torch::tensor({1.0F, 2.0F, 0.5F, 1.5F, 1.0F});
        const Tensor order = torch::tensor({4, 3, 2, 1, 0});
        const Tensor logits = n.b(n.a(batch["x"])).index_select(1, order);
        return F::cross_entropy(logits, batch["target"], F::CrossEntropyFuncOptions().weight(weights)) *
               torch::scalar_tensor(1.5) + torch::tensor(0.25);
      };
    });
    add("HostConstantsChangedInPlace", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        Tensor weights = torch::tensor({1.0F, 2.0F, 0.5F, 1.5F, 1.0F});
        const Tensor first = weights.square();
        weights.mul_(0.5).add_(1);
        weights[2].fill_(0.75);
        Tensor filled = torch::empty({5});
        std::fill_n(filled.data_ptr<float>(), 5, 2.0F);
        filled.sub_(weights);
        const Tensor logits = n.b(n.a(batch["x"])) * filled + first;
        return F::cross_entropy(logits, batch["target"], F::CrossEntropyFuncOptions().weight(weights));
      };
    });
    add("Factories", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor positions = torch::arange(8, torch::kFloat).unsqueeze(1) / torch::linspace(1, 2, 8);
        const Tensor mask = torch::ones({8, 8}).tril() + torch::eye(8) + torch::full({8, 8}, 0.1) + torch::zeros({8, 8});
        const Tensor h = (n.a(batch["x"]) + positions) * mask;
        Tensor filled = torch::empty({8, 8}).fill_(0.5);
        filled += torch::zeros_like(h) + torch::ones_like(h) + h.new_full({8, 8}, 0.5);
        return F::cross_entropy(n.b(h * filled), batch["target"]);
      };
    });

    // indexing
    add("MaskedFill", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        Tensor h = n.a(batch["x"]);
        h = h.masked_fill(h > 0.5, 0.5).masked_fill(batch["x"].narrow(1, 0, 8) > 1, -1);
        h.masked_fill_(batch["x"].narrow(1, 8, 8) < -1, 0.25);
        return F::cross_entropy(torch::where(h > 0, n.b(h).sum(1, true), h).narrow(1, 0, 5) + n.b(h), batch["target"]);
      };
    });
    add("IndexPutAndGather", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor h = n.a(batch["x"]);
        const Tensor t = batch["target"];
        Tensor y = h.index_put({t}, h.detach() * 0.5, /*accumulate=*/true);
        y = y.index({torch::indexing::Slice(), torch::tensor({1, 1, 0, 2, 3, 4, 5, 7})});
        y = y + h.gather(1, t.unsqueeze(1)) + h.index_select(0, t) + h.index_add(0, t, h, 0.5);
        Tensor z = y.clone();
        z.index_put_({t, t}, torch::ones({8}));
        z.index_fill_(1, torch::tensor({6}), 0.5);
        return F::cross_entropy(n.b(z), t);
      };
    });
    add("Scatter", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor t = batch["target"].unsqueeze(1);
        const Tensor logits = n.b(n.a(batch["x"]));
        const Tensor hot = torch::zeros({8, 5}).scatter_(1, t, 1);
        const Tensor sums = torch::zeros({5, 5}).scatter_add(0, t.expand({8, 5}), logits);
        const Tensor most = torch::zeros({5, 5}).scatter_reduce(0, t.expand({8, 5}), logits, "amax");
        return -(torch::log_softmax(logits, 1) * hot).sum(1).mean() + sums.square().mean() + most.mean() +
               logits.scatter(1, t, 0.5).mean();
      };
    });
    add("Cumulative", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor h = n.a(batch["x"]);
        return F::cross_entropy(n.b(h.cumsum(1) + h.logcumsumexp(0) + std::get<0>(h.cummax(1))),
                                batch["target"]);
      };
    });
    add("SortTopkExtremes", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor h = n.a(batch["x"]);
        Tensor y = std::get<0>(h.sort(1, true)) + std::get<0>(h.topk(1, 1)) + std::get<0>(h.max(1, true)) + h.amin(1, true) +
                   std::get<0>(h.kthvalue(3, 1, true)) + std::get<0>(h.median(1, true));
        y = y + h.gather(1, std::get<1>(h.sort(1))) * h.argmax(1, true).to(at::kFloat);
        return F::cross_entropy(n.b(y), batch["target"]);
      };
    });

    // products
    add("EinsumAndBmm", [](Model& m) -> Loss {
      const Tensor w = m.parameter("w", {4, 4, 5});
      const Tensor v = m.parameter("v", {8, 4, 4});
      return [w, v](const Batch& batch) mutable -> Tensor {
        const Tensor x = batch["x"].view({8, 4, 4});
        const Tensor y = torch::einsum("bij,jkc->bikc", {x, w}).sum(1) + torch::einsum("bii,ikc->bkc", {x, w});
        const Tensor z = torch::bmm(v, x) + torch::baddbmm(x, v, v.transpose(1, 2)) + torch::matmul(v, v[0]);
        return F::cross_entropy(y.sum(1) + z.sum({1, 2}).unsqueeze(1), batch["target"]) +
               torch::tensordot(z, w, {1, 2}, {0, 1}).square().mean() + torch::addmv(v[0][0], v[1], v[2][0]).dot(v[3][0]);
      };
    });
    add("Linalg", [](Model& m) -> Loss {
      const Tensor w = m.parameter("w", {8, 8});
      Base n(m);
      return [w, n](const Batch& batch) mutable -> Tensor {
        const Tensor h = n.a(batch["x"]);
        const Tensor spd = h.t().matmul(h) + torch::eye(8) * 3 + w.matmul(w.t());
        const Tensor factor = at::linalg_cholesky(spd);
        return at::linalg_solve(spd, h).square().mean() + factor.diagonal().log().sum() + at::linalg_inv(spd).sum() +
               at::logdet(spd) + at::linalg_norm(w) + n.b(h).norm(3) + at::linalg_matrix_exp(w * 0.1).mean();
      };
    });
    add("Spectrum", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor { return at::fft_rfft(n.a(batch["x"])).abs().mean() + n.b(n.a(batch["x"])).square().mean(); };
    });
    add("LazyConjugate", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor y = at::fft_rfft(n.b(n.a(batch["x"])));
        return at::real(y * y.conj()).mean();
      };
    }, vectors, 1, "conjugate");
    add("CumulativeProduct", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor { return n.b(n.a(batch["x"])).cumprod(1).square().mean(); };
    }, vectors, 1, "_local_scalar_dense");
    add("InputChangedInPlace", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        batch["x"].mul_(0.5);
        return F::cross_entropy(n.b(n.a(batch["x"])), batch["target"]);
      };
    }, vectors, 1, "the batch tensor 'x'");

    // layers
    add("Conv1d", [](Model& m) -> Loss {
      auto conv = m.module("conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 6, 3).padding(1).stride(2)));
      auto up = m.module("up", torch::nn::ConvTranspose1d(torch::nn::ConvTranspose1dOptions(6, 5, 4).stride(2)));
      return [conv, up](const Batch& batch) mutable -> Tensor {
        return F::cross_entropy(up(torch::relu(conv(batch["x"].view({8, 4, 4})))).mean(2), batch["target"]);
      };
    });
    add("Conv2dKinds", [](Model& m) -> Loss {
      auto grouped = m.module("grouped", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).groups(2).padding(2).dilation(2)));
      auto depthwise = m.module("depthwise", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).groups(8).bias(false)));
      auto up = m.module("up", torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(8, 5, 3).stride(2).output_padding(1)));
      return [grouped, depthwise, up](const Batch& batch) mutable -> Tensor {
        return F::cross_entropy(up(depthwise(F::silu(grouped(batch["x"])))).mean({2, 3}), batch["target"]);
      };
    }, images);
    add("Conv3d", [](Model& m) -> Loss {
      auto conv = m.module("conv", torch::nn::Conv3d(1, 5, 3));
      return [conv](const Batch& batch) mutable -> Tensor { return F::cross_entropy(conv(batch["x"].unsqueeze(1)).mean({2, 3, 4}), batch["target"]); };
    }, images);
    add("Norms", [](Model& m) -> Loss {
      auto group = m.module("group", torch::nn::GroupNorm(2, 4));
      auto plain = m.module("plain", torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(4).affine(false)));
      auto untracked = m.module("untracked", torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(4).track_running_stats(false)));
      auto instance = m.module("instance", torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)));
      auto layer = m.module("layer", torch::nn::LayerNorm(torch::nn::LayerNormOptions({9, 9}).elementwise_affine(false)));
      auto head = m.module("head", torch::nn::Linear(4, 5));
      const Tensor scale = m.parameter("scale", {9});
      return [group, plain, untracked, instance, layer, head, scale](const Batch& batch) mutable -> Tensor {
        Tensor x = layer(instance(untracked(plain(torch::relu(group(batch["x"]))))));
        x = at::rms_norm(x, {9}, scale, 1e-5) + F::local_response_norm(x, F::LocalResponseNormFuncOptions(2));
        return F::cross_entropy(head(x.mean({2, 3})), batch["target"]);
      };
    }, images);
    add("PoolsAndResampling", [](Model& m) -> Loss {
      auto conv = m.module("conv", torch::nn::Conv2d(4, 5, 1));
      return [conv](const Batch& batch) mutable -> Tensor {
        const Tensor x = conv(batch["x"]);
        Tensor y = torch::avg_pool2d(x, 3, 2) + torch::max_pool2d(x, 3, 2) + F::lp_pool2d(x, F::LPPool2dFuncOptions(2, 3).stride(2)).tanh();
        y = F::interpolate(y, F::InterpolateFuncOptions().size(std::vector<int64_t>{7, 7}).mode(torch::kBilinear).align_corners(false));
        y = F::pad(y, F::PadFuncOptions({1, 2, 2, 1}).mode(torch::kReflect)) + F::pad(y, F::PadFuncOptions({2, 1, 1, 2}).mode(torch::kReplicate));
        y = torch::adaptive_avg_pool2d(y, {4, 4}) + std::get<0>(torch::adaptive_max_pool2d(y, {4, 4}));
        y = F::unfold(y, F::UnfoldFuncOptions({2, 2})).view({4, 5, -1});
        const Tensor grid = at::affine_grid_generator(torch::eye(2, 3).expand({4, 2, 3}) * 0.8, {4, 5, 4, 4}, false);
        const Tensor sampled = F::grid_sample(x, grid, F::GridSampleFuncOptions().align_corners(false));
        return F::cross_entropy(y.mean(2) + sampled.mean({2, 3}) + at::roll(x, {1}, {2}).amax({2, 3}), batch["target"]);
      };
    }, images);
    add("EmbeddingWithPadding", [](Model& m) -> Loss {
      auto words = m.module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 8).padding_idx(0)));
      auto scaled = m.module("scaled", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 8).scale_grad_by_freq(true)));
      auto bag = m.module("bag", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(11, 8).mode(torch::kMean)));
      auto head = m.module("head", torch::nn::Linear(8, 5));
      return [words, scaled, bag, head](const Batch& batch) mutable -> Tensor {
        return F::cross_entropy(head((words(batch["x"]) + scaled(batch["x"])).mean(1) + bag(batch["x"])), batch["target"]);
      };
    }, tokens);
    add("MaskedMultiheadAttention", [](Model& m) -> Loss {
      auto words = m.module("words", torch::nn::Embedding(11, 8));
      auto attention = m.module("attention", torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(8, 2).dropout(0.1)));
      auto head = m.module("head", torch::nn::Linear(8, 5));
      return [words, attention, head](const Batch& batch) mutable -> Tensor {
        const Tensor x = words(batch["x"]).transpose(0, 1);
        const Tensor mask = torch::ones({6, 6}).triu(1).to(at::kBool);
        const Tensor padding = batch["x"] == 10;
        const auto [y, weights] = attention->forward(x, x, x, padding.logical_and(torch::arange(6) > 0), true, mask);
        return F::cross_entropy(head(y.mean(0)), batch["target"]) + weights.square().mean();
      };
    }, tokens);
    add("AttentionKernels", [](Model& m) -> Loss {
      const Tensor w = m.parameter("w", {8, 24});
      auto words = m.module("words", torch::nn::Embedding(11, 8));
      return [w, words](const Batch& batch) mutable -> Tensor {
        const auto parts = words(batch["x"]).matmul(w).view({4, 6, 3, 2, 4}).permute({2, 0, 3, 1, 4}).unbind(0);
        const Tensor bias = torch::ones({6, 6}).tril().log();
        const Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], bias) +
                         at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.2) +
                         at::scaled_dot_product_attention(parts[0], parts[1], parts[2], bias == 0, 0.0, false, 0.3);
        return y.square().mean();
      };
    }, tokens);
    add("Transformer", [](Model& m) -> Loss {
      auto words = m.module("words", torch::nn::Embedding(11, 8));
      auto layer = m.module("layer", torch::nn::TransformerEncoderLayer(torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.1)));
      auto head = m.module("head", torch::nn::Linear(8, 5));
      return [words, layer, head](const Batch& batch) mutable -> Tensor {
        return F::cross_entropy(head(layer(words(batch["x"]).transpose(0, 1)).mean(0)), batch["target"]);
      };
    }, tokens);
    add("Gru", [](Model& m) -> Loss {
      auto gru = m.module("gru", torch::nn::GRU(torch::nn::GRUOptions(4, 6).num_layers(2).dropout(0.2).bidirectional(true)));
      auto head = m.module("head", torch::nn::Linear(12, 5));
      return [gru, head](const Batch& batch) mutable -> Tensor {
        return F::cross_entropy(head(std::get<0>(gru(batch["x"].view({4, 8, 4})))[-1]), batch["target"]);
      };
    });
    add("RnnAndCells", [](Model& m) -> Loss {
      auto rnn = m.module("rnn", torch::nn::RNN(torch::nn::RNNOptions(4, 6)));
      auto lstm = m.module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 6).bidirectional(true).proj_size(4)));
      auto cell = m.module("cell", torch::nn::LSTMCell(8, 5));
      auto gru = m.module("gru", torch::nn::GRUCell(5, 5));
      return [rnn, lstm, cell, gru](const Batch& batch) mutable -> Tensor {
        const Tensor x = std::get<0>(lstm(std::get<0>(rnn(batch["x"].view({4, 8, 4})))));
        std::tuple<Tensor, Tensor> state{torch::zeros({8, 5}), torch::zeros({8, 5})};
        Tensor h = torch::zeros({8, 5});
        for (int64_t t = 0; t < 4; ++t) {
          state = cell(x[t], state);
          h = gru(std::get<0>(state), h);
        }
        return F::cross_entropy(h, batch["target"]);
      };
    });

    // randomness
    add("Dropouts", [](Model& m) -> Loss {
      auto conv = m.module("conv", torch::nn::Conv2d(4, 5, 3));
      return [conv](const Batch& batch) mutable -> Tensor {
        Tensor x = F::dropout2d(conv(batch["x"]), F::Dropout2dFuncOptions().p(0.3));
        x = F::alpha_dropout(x, F::AlphaDropoutFuncOptions().p(0.2).training(true));
        x = F::feature_alpha_dropout(x, F::FeatureAlphaDropoutFuncOptions().p(0.2).training(true));
        x = torch::feature_dropout(x, 0.1, true) + torch::dropout(x, 0.5, true) + torch::dropout(x, 0.5, false);
        x = torch::rrelu(x, 0.1, 0.3, /*training=*/true);
        return F::cross_entropy(x.mean({2, 3}), batch["target"]);
      };
    }, images);
    add("Noise", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        Tensor h = n.a(batch["x"]);
        h = h * torch::rand_like(h) + torch::randn({8, 8}) * 0.1 + at::normal(0.0, 0.1, {8, 8});
        h = h + torch::bernoulli(torch::full({8, 8}, 0.3)) + torch::empty({8, 8}).exponential_(2.0) + torch::randint(3, {8, 1});
        h = h.index_select(0, torch::randperm(8)) + torch::empty({8, 8}).uniform_(-1, 1);
        h = h + torch::multinomial(torch::softmax(h.detach(), 1), 8, true).to(at::kFloat) * 0.01;
        h = h + torch::empty({8, 1}).cauchy_().clamp(-1, 1) + torch::empty({8, 1}).geometric_(0.5) * 0.01 + torch::poisson(torch::ones({8, 1})) * 0.1 +
            torch::empty({8, 1}).log_normal_().clamp(0, 1) + torch::empty({8, 1}).random_(3) * 0.1;
        return F::cross_entropy(n.b(h), batch["target"]);
      };
    });
    add("NoiseNobodyReads", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        torch::rand({3});
        torch::empty({5}).normal_();
        torch::empty({5}).cauchy_();
        torch::empty({5}).geometric_(0.5);
        torch::empty({5}).log_normal_();
        torch::empty({5}).exponential_();
        torch::empty({5}).random_();
        torch::empty({5}).bernoulli_(0.5);
        torch::randperm(7);
        at::_standard_gamma(torch::ones({3}));
        torch::poisson(torch::ones({3}));
        at::binomial(torch::ones({3}) * 4, torch::ones({3}) * 0.5);
        at::_sample_dirichlet(torch::ones({3}));
        torch::multinomial(torch::ones({4}), 2);
        torch::dropout(batch["x"], 0.5, true);
        return F::cross_entropy(n.b(torch::dropout(n.a(batch["x"]), 0.5, true)), batch["target"]);
      };
    });

    // losses
    add("RegressionLosses", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor y = n.b(n.a(batch["x"]));
        const Tensor t = batch["x"].narrow(1, 0, 5);
        return F::mse_loss(y, t) + F::l1_loss(y, t) + F::smooth_l1_loss(y, t) + at::huber_loss(y, t) +
               F::mse_loss(y, t, F::MSELossFuncOptions().reduction(torch::kNone)).mean() +
               F::binary_cross_entropy_with_logits(y, t.sigmoid(), F::BinaryCrossEntropyWithLogitsFuncOptions().pos_weight(torch::full({5}, 2.0))) +
               F::binary_cross_entropy(y.sigmoid(), t.sigmoid()) + F::poisson_nll_loss(y, t.exp()) + F::soft_margin_loss(y, t.sign()) +
               F::kl_div(torch::log_softmax(y, 1), torch::softmax(t, 1), F::KLDivFuncOptions().reduction(torch::kBatchMean)) +
               F::cosine_embedding_loss(y, t, torch::ones({8})) + F::triplet_margin_loss(y, t, t.flip(0)) +
               F::hinge_embedding_loss(y, t.sign()) + F::margin_ranking_loss(y, t, torch::ones({8, 5})) + y.var(1).mean() + y.std() + y.logsumexp(1).mean();
      };
    });
    add("ClassLosses", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor y = n.b(n.a(batch["x"]));
        const Tensor t = batch["target"];
        const Tensor weights = torch::linspace(0.5, 1.5, 5);
        return F::nll_loss(torch::log_softmax(y, 1), t, F::NLLLossFuncOptions().weight(weights).ignore_index(2)) +
               F::cross_entropy(y, t, F::CrossEntropyFuncOptions().label_smoothing(0.1)) +
               F::cross_entropy(y, torch::softmax(batch["x"].narrow(1, 0, 5), 1)) + F::multi_margin_loss(y, t) +
               F::multilabel_soft_margin_loss(y, (batch["x"].narrow(1, 0, 5) > 0).to(at::kFloat)) +
               F::multilabel_margin_loss(y, torch::stack({t, torch::full_like(t, -1), t, t, t}, 1)) +
               F::nll_loss(torch::log_softmax(y.view({2, 5, 2, 2}), 1), t.view({2, 2, 2}));
      };
    });
    add("CtcWithFixedLengths", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor y = torch::log_softmax(n.b(n.a(batch["x"])).view({4, 2, 5}), 2);
        return at::ctc_loss(y, batch["target"].clamp_min(1).view({2, 4}).narrow(1, 0, 2), at::IntArrayRef{4, 4}, at::IntArrayRef{2, 1});
      };
    }, vectors, 1, "_ctc_loss");

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
    add("TiedWeights", [](Model& m) -> Loss {
      auto words = m.module("words", torch::nn::Embedding(11, 8));
      const Tensor w = m.parameter("w", {8, 8});
      return [words, w](const Batch& batch) mutable -> Tensor {
        const Tensor h = torch::tanh(words(batch["x"]).matmul(w)).matmul(w.t()).matmul(w);
        return F::cross_entropy(h.matmul(words->weight.t()).flatten(0, 1), batch["x"].flatten());
      };
    }, tokens);
    add("TheSameModuleTwiceAndAParameterAsLoss", [](Model& m) -> Loss {
      auto a = m.module("a", torch::nn::Linear(16, 16));
      const Tensor w = m.parameter("w", {});
      const Tensor v = m.parameter("v", {16});
      return [a, w, v](const Batch& batch) mutable -> Tensor { return (a(a(batch["x"])) * v).square().mean() * w + w + v.sum() + v[0]; };
    });

    // shapes, layouts, dtypes
    add("NonContiguousInput", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor { return F::cross_entropy(n.b(n.a(batch["x"]).relu()), batch["target"]); };
    }, [](uint64_t seed) {
      const Batch plain = vectors(seed);
      return Batch{{"x", plain["x"].t().contiguous().t()}, {"target", plain["target"].repeat_interleave(2).slice(0, 0, 16, 2)}};
    });
    add("ExpandedInput", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor { return F::cross_entropy(n.b(n.a(batch["x"]).relu()), batch["target"]); };
    }, [](uint64_t seed) {
      const Batch plain = vectors(seed);
      return Batch{{"x", plain["x"].narrow(0, 0, 1).expand({8, 16})}, {"target", plain["target"].narrow(0, 0, 1).expand({8})}};
    });
    add("ChannelsLastInput", [](Model& m) -> Loss {
      auto conv = m.module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 5, 3).padding(1)));
      auto norm = m.module("norm", torch::nn::BatchNorm2d(5));
      return [conv, norm](const Batch& batch) mutable -> Tensor { return F::cross_entropy(torch::max_pool2d(norm(conv(batch["x"])), 2).mean({2, 3}), batch["target"]); };
    }, [](uint64_t seed) {
      const Batch plain = images(seed);
      return Batch{{"x", plain["x"].contiguous(at::MemoryFormat::ChannelsLast)}, {"target", plain["target"]}};
    });
    add("ChannelsLastWeights", [](Model& m) -> Loss {
      auto conv = m.module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 5, 3)));
      conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
      return [conv](const Batch& batch) mutable -> Tensor { return F::cross_entropy(torch::relu(conv(batch["x"])).mean({2, 3}), batch["target"]); };
    }, images);
    add("Float64", [](Model& m) -> Loss {
      Base n(m);
      m.to(at::kDouble);
      return [n](const Batch& batch) mutable -> Tensor { return F::cross_entropy(n.b(torch::gelu(n.a(batch["x"].to(at::kDouble)))), batch["target"]); };
    });
    add("Float64Accumulated", list.back().make, vectors, 3);
    add("Bfloat16Parameters", [](Model& m) -> Loss {
      Base n(m);
      m.to(at::kBFloat16);
      return [n](const Batch& batch) mutable -> Tensor { return F::cross_entropy(n.b(torch::gelu(n.a(batch["x"].to(at::kBFloat16)))), batch["target"]); };
    });
    add("MixedDtypes", [](Model& m) -> Loss {
      Base n(m);
      n.a->to(at::kDouble);
      return [n](const Batch& batch) mutable -> Tensor {
        const Tensor h = n.a(batch["x"].to(at::kDouble)).to(at::kFloat);
        return F::cross_entropy(n.b(h.to(at::kHalf).to(at::kFloat)), batch["target"]) * 2 + h.to(at::kLong).to(at::kFloat).mean();
      };
    });
    add("TensorsWithoutElements", [](Model& m) -> Loss {
      const Tensor none = m.parameter("none", {0, 4});
      Base n(m);
      return [none, n](const Batch& batch) mutable -> Tensor {
        const Tensor h = n.a(batch["x"]);
        const Tensor nothing = h.narrow(1, 0, 0);
        const Tensor y = torch::cat({h, nothing, torch::zeros({8, 0})}, 1) + none.sum() + nothing.sum() + torch::empty({0}).sum();
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
    add("Accumulated5", [](Model& m) -> Loss {
      Base n(m);
      auto norm = m.module("norm", torch::nn::BatchNorm1d(8));
      return [n, norm](const Batch& batch) mutable -> Tensor { return F::cross_entropy(n.b(torch::dropout(norm(n.a(batch["x"])), 0.3, true)), batch["target"]); };
    }, vectors, 5);

    // what the step may carry from update to update
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

    add("Activations", [](Model& m) -> Loss {
      Base n(m);
      auto prelu = m.module("prelu", torch::nn::PReLU());
      auto bilinear = m.module("bilinear", torch::nn::Bilinear(8, 8, 8));
      return [n, prelu, bilinear](const Batch& batch) mutable -> Tensor {
        Tensor h = n.a(batch["x"]);
        h = prelu(h) + F::elu(h) + F::selu(h) + F::celu(h) + F::hardtanh(h) + F::softplus(h) + F::mish(h) + F::logsigmoid(h) +
            F::softshrink(h) + F::tanhshrink(h) + at::hardsigmoid(h) + at::hardswish(h) + F::relu6(h) + F::glu(torch::cat({h, h}, 1)) +
            F::gumbel_softmax(h, F::GumbelSoftmaxFuncOptions().hard(true)) + bilinear(h, h.flip(1)) + F::normalize(h) + F::threshold(h, F::ThresholdFuncOptions(0.1, 0.2));
        return F::cross_entropy(n.b(h), batch["target"]);
      };
    });
    add("MasksOfFixedShape", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        Tensor h = n.a(batch["x"]) * 1;
        const Tensor mask = batch["x"].narrow(1, 0, 8) > 0.5;
        h.index_put_({mask}, torch::tensor(0.25F));
        h = h.masked_scatter(mask.logical_not(), h.detach().flip(0)) + torch::bucketize(h.detach(), torch::linspace(-1, 1, 5)).to(at::kFloat);
        h = h + torch::histc(h.detach(), 8, -2, 2) * 0.01 + torch::quantile(h.detach(), 0.3, 1, true);
        return F::cross_entropy(n.b(h), batch["target"]) + torch::cdist(h, h.flip(0)).mean() + torch::kron(h[0], h[1]).mean() +
               torch::trapezoid(h, -1).mean() + torch::renorm(h, 2, 0, 1.0).mean();
      };
    });
    add("EmbeddingWithMaxNorm", [](Model& m) -> Loss {
      auto words = m.module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 8).max_norm(0.5)));
      auto head = m.module("head", torch::nn::Linear(8, 5));
      return [words, head](const Batch& batch) mutable -> Tensor { return F::cross_entropy(head(words(batch["x"]).mean(1)), batch["target"]); };
    }, tokens);
    add("ComplexNumbers", [](Model& m) -> Loss {
      const Tensor w = m.parameter("w", {4, 8, 2});
      Base n(m);
      return [n, w](const Batch& batch) mutable -> Tensor {
        const Tensor z = torch::view_as_complex(n.a(batch["x"]).view({8, 4, 2}));
        return torch::view_as_real(torch::complex(torch::real(z), torch::imag(z))).square().mean() + n.b(n.a(batch["x"])).mean() + w.square().sum();
      };
    });
    add("NormalizedWeight", [](Model& m) -> Loss {  // spectral norm: power iteration in buffers
      Base n(m);
      const Tensor u = m.register_buffer("u", torch::randn({8}));
      const Tensor v = m.register_buffer("v", torch::randn({16}));
      return [n, u, v](const Batch& batch) mutable -> Tensor {
        {
          const at::NoGradGuard no_grad;
          v.copy_(F::normalize(n.a->weight.t().mv(u), F::NormalizeFuncOptions().dim(0)));
          u.copy_(F::normalize(n.a->weight.mv(v), F::NormalizeFuncOptions().dim(0)));
        }
        const Tensor sigma = torch::dot(u.clone(), n.a->weight.mv(v.clone()));
        return F::cross_entropy(n.b(F::linear(batch["x"], n.a->weight / sigma, n.a->bias)), batch["target"]);
      };
    });
    add("FilledPieceByPiece", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        Tensor mask = torch::empty({8, 8});
        for (int64_t i = 0; i < 8; ++i) mask[i].fill_(0.5 + 0.1 * static_cast<double>(i));
        Tensor rows = torch::empty({8, 16});
        rows.narrow(0, 0, 4).copy_(batch["x"].narrow(0, 4, 4));
        rows.narrow(0, 4, 4).copy_(batch["x"].narrow(0, 0, 4));
        Tensor counts = torch::zeros({8, 8});
        for (int64_t i = 0; i < 3; ++i) counts += mask;
        return F::cross_entropy(n.b(n.a(rows) * mask + counts), batch["target"]);
      };
    });

    // what cannot be captured says so
    add("PackedSequence", [](Model& m) -> Loss {
      auto gru = m.module("gru", torch::nn::GRU(torch::nn::GRUOptions(4, 5)));
      auto update = std::make_shared<int64_t>(0);
      return [gru, update](const Batch& batch) mutable -> Tensor {
        const Tensor lengths = batch["target"].slice(0, 0, 4).clamp_min(1);
        const auto packed = torch::nn::utils::rnn::pack_padded_sequence(batch["x"].view({8, 4, 4}), lengths, false, /*enforce_sorted=*/false);
        return std::get<1>(gru->forward_with_packed_input(packed)).square().mean();
      };
    }, vectors, 1, "");
    add("OneHot", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor { return -(torch::log_softmax(n.b(n.a(batch["x"])), 1) * torch::one_hot(batch["target"], 5)).mean(); };
    }, vectors, 1, "_local_scalar_dense");
    add("MaskedSelect", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor { return n.b(n.a(batch["x"])).masked_select(batch["target"].unsqueeze(1) > 1).mean(); };
    }, vectors, 1, "masked_select");
    add("RepeatInterleave", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor { return n.b(n.a(batch["x"])).repeat_interleave(batch["target"] + 1, 0).square().mean(); };
    }, vectors, 1, "repeat_interleave");
    add("MemoryOfTheHost", [](Model& m) -> Loss {
      Base n(m);
      return [n](const Batch& batch) mutable -> Tensor {
        const std::vector<float> factors = {1.0F, 2.0F, 0.5F, 1.5F, 1.0F};
        const Tensor scale = torch::from_blob(const_cast<float*>(factors.data()), {5}, at::kFloat).clone();
        return F::cross_entropy(n.b(n.a(batch["x"])) * scale, batch["target"]);
      };
    }, vectors, 1, "does not own");
    return list;
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
  options.optimizer.lr = 1e-2;
  options.clip_grad = ClipGradOptions{1.0, 2.0};
  const auto trainer = testing::make_trainer(mode, make_task(model, [loss](Model&, const Batch& batch) { return loss(batch); }), options, graph);
  Trace result;
  for (uint64_t n = 0; n < 12; ++n) {
    std::vector<Batch> window;
    for (int64_t i = 0; i < c.accumulate; ++i) window.push_back(c.batch(100 * n + static_cast<uint64_t>(i)));
    result.losses.push_back(trainer->step(window).loss.item<double>());
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
    EXPECT_EQ(graph.report[0].state, c.reason.empty() ? "captured" : "eager") << graph.report[0].reason << "\n" << graph.program;
    EXPECT_THAT(graph.report[0].reason, HasSubstr(c.reason));
    EXPECT_EQ(graph.report[0].replays, c.reason.empty() ? 10 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Losses, StepProgramParity, ::testing::Range<std::size_t>(0, cases().size()),
                         [](const auto& info) { return cases()[info.param].name; });

}  // namespace
}  // namespace duet
