#include "tests/graph/step_cases.h"

namespace duet::testing {

void add_layer_cases(Cases& add) {
  // layers
  add("Conv1d", [](Model& m) -> Loss {
    auto conv = m.module("conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 6, 3).padding(1).stride(2)));
    auto up = m.module("up", torch::nn::ConvTranspose1d(torch::nn::ConvTranspose1dOptions(6, 5, 4).stride(2)));
    return [conv, up](const Batch& batch) mutable -> Tensor {
      return F::cross_entropy(up(torch::relu(conv(batch["x"].view({8, 4, 4})))).mean(2), batch["target"]);
    };
  });
  add(
      "Conv2dKinds",
      [](Model& m) -> Loss {
        auto grouped =
            m.module("grouped", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).groups(2).padding(2).dilation(2)));
        auto depthwise =
            m.module("depthwise", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).groups(8).bias(false)));
        auto up = m.module(
            "up", torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(8, 5, 3).stride(2).output_padding(1)));
        return [grouped, depthwise, up](const Batch& batch) mutable -> Tensor {
          return F::cross_entropy(up(depthwise(F::silu(grouped(batch["x"])))).mean({2, 3}), batch["target"]);
        };
      },
      images);
  add(
      "Conv3d",
      [](Model& m) -> Loss {
        auto conv = m.module("conv", torch::nn::Conv3d(1, 5, 3));
        return [conv](const Batch& batch) mutable -> Tensor {
          return F::cross_entropy(conv(batch["x"].unsqueeze(1)).mean({2, 3, 4}), batch["target"]);
        };
      },
      images);
  add(
      "Norms",
      [](Model& m) -> Loss {
        auto group = m.module("group", torch::nn::GroupNorm(2, 4));
        auto plain = m.module("plain", torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(4).affine(false)));
        auto untracked =
            m.module("untracked", torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(4).track_running_stats(false)));
        auto instance = m.module(
            "instance",
            torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)));
        auto layer =
            m.module("layer", torch::nn::LayerNorm(torch::nn::LayerNormOptions({9, 9}).elementwise_affine(false)));
        auto head = m.module("head", torch::nn::Linear(4, 5));
        const Tensor scale = m.parameter("scale", {9});
        return [group, plain, untracked, instance, layer, head, scale](const Batch& batch) mutable -> Tensor {
          Tensor x = layer(instance(untracked(plain(torch::relu(group(batch["x"]))))));
          x = at::rms_norm(x, {9}, scale, 1e-5) + F::local_response_norm(x, F::LocalResponseNormFuncOptions(2));
          return F::cross_entropy(head(x.mean({2, 3})), batch["target"]);
        };
      },
      images);
  add("BatchNormOfStridedInputs", [](Model& m) -> Loss {
    auto steps = m.module("steps", torch::nn::BatchNorm1d(4));
    auto columns = m.module("columns", torch::nn::BatchNorm1d(16));
    auto head = m.module("head", torch::nn::Linear(16, 5));
    return [steps, columns, head](const Batch& batch) mutable -> Tensor {
      const Tensor x = steps(batch["x"].view({8, 4, 4}).transpose(1, 2)).reshape({8, 16});
      return F::cross_entropy(head(columns(x.t().contiguous().t())), batch["target"]);
    };
  });
  add(
      "PoolsAndResampling",
      [](Model& m) -> Loss {
        auto conv = m.module("conv", torch::nn::Conv2d(4, 5, 1));
        return [conv](const Batch& batch) mutable -> Tensor {
          const Tensor x = conv(batch["x"]);
          Tensor y = torch::avg_pool2d(x, 3, 2) + torch::max_pool2d(x, 3, 2) +
                     F::lp_pool2d(x, F::LPPool2dFuncOptions(2, 3).stride(2)).tanh();
          y = F::interpolate(
              y,
              F::InterpolateFuncOptions().size(std::vector<int64_t>{7, 7}).mode(torch::kBilinear).align_corners(false));
          y = F::pad(y, F::PadFuncOptions({1, 2, 2, 1}).mode(torch::kReflect)) +
              F::pad(y, F::PadFuncOptions({2, 1, 1, 2}).mode(torch::kReplicate));
          y = torch::adaptive_avg_pool2d(y, {4, 4}) + std::get<0>(torch::adaptive_max_pool2d(y, {4, 4}));
          y = F::unfold(y, F::UnfoldFuncOptions({2, 2})).view({4, 5, -1});
          const Tensor grid = at::affine_grid_generator(torch::eye(2, 3).expand({4, 2, 3}) * 0.8, {4, 5, 4, 4}, false);
          const Tensor sampled = F::grid_sample(x, grid, F::GridSampleFuncOptions().align_corners(false));
          return F::cross_entropy(y.mean(2) + sampled.mean({2, 3}) + at::roll(x, {1}, {2}).amax({2, 3}),
                                  batch["target"]);
        };
      },
      images);
  add(
      "EmbeddingWithPadding",
      [](Model& m) -> Loss {
        auto words = m.module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 8).padding_idx(0)));
        auto scaled =
            m.module("scaled", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 8).scale_grad_by_freq(true)));
        auto bag = m.module("bag", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(11, 8).mode(torch::kMean)));
        auto head = m.module("head", torch::nn::Linear(8, 5));
        return [words, scaled, bag, head](const Batch& batch) mutable -> Tensor {
          return F::cross_entropy(head((words(batch["x"]) + scaled(batch["x"])).mean(1) + bag(batch["x"])),
                                  batch["target"]);
        };
      },
      tokens);
  add(
      "MaskedMultiheadAttention",
      [](Model& m) -> Loss {
        auto words = m.module("words", torch::nn::Embedding(11, 8));
        auto attention = m.module(
            "attention", torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(8, 2).dropout(0.1)));
        auto head = m.module("head", torch::nn::Linear(8, 5));
        return [words, attention, head](const Batch& batch) mutable -> Tensor {
          const Tensor x = words(batch["x"]).transpose(0, 1);
          const Tensor mask = torch::ones({6, 6}).triu(1).to(at::kBool);
          const Tensor padding = batch["x"] == 10;
          const auto [y, weights] = attention->forward(x, x, x, padding.logical_and(torch::arange(6) > 0), true, mask);
          return F::cross_entropy(head(y.mean(0)), batch["target"]) + weights.square().mean();
        };
      },
      tokens);
  add(
      "AttentionKernels",
      [](Model& m) -> Loss {
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
      },
      tokens);
  add(
      "Transformer",
      [](Model& m) -> Loss {
        auto words = m.module("words", torch::nn::Embedding(11, 8));
        auto layer =
            m.module("layer", torch::nn::TransformerEncoderLayer(
                                  torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.1)));
        auto head = m.module("head", torch::nn::Linear(8, 5));
        return [words, layer, head](const Batch& batch) mutable -> Tensor {
          return F::cross_entropy(head(layer(words(batch["x"]).transpose(0, 1)).mean(0)), batch["target"]);
        };
      },
      tokens);
  add("Gelus", [](Model& m) -> Loss {
    auto a = m.module("a", torch::nn::Linear(16, 40));
    auto b = m.module("b", torch::nn::Linear(40, 5));
    return [a, b](const Batch& batch) mutable -> Tensor {
      const Tensor x = a(batch["x"]);
      Tensor h = torch::gelu(x, "tanh") + torch::gelu(x, "none") + torch::gelu(x * 2, "tanh").t().contiguous().t();
      h = h + torch::gelu(x.to(at::kDouble), "tanh").to(at::kFloat) +
          torch::gelu(x.to(at::kBFloat16), "tanh").to(at::kFloat);
      h = h + torch::gelu(torch::gelu(x, "tanh").slice(1, 0, 40, 3), "tanh").sum();  // not contiguous
      Tensor y = x * 3;
      h = h + torch::gelu(y.detach(), "tanh");
      y.mul_(0.5);
      return F::cross_entropy(b(h + torch::gelu(y, "tanh")), batch["target"]);
    };
  });
  add("Gru", [](Model& m) -> Loss {
    auto gru =
        m.module("gru", torch::nn::GRU(torch::nn::GRUOptions(4, 6).num_layers(2).dropout(0.2).bidirectional(true)));
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
  add(
      "Dropouts",
      [](Model& m) -> Loss {
        auto conv = m.module("conv", torch::nn::Conv2d(4, 5, 3));
        return [conv](const Batch& batch) mutable -> Tensor {
          Tensor x = F::dropout2d(conv(batch["x"]), F::Dropout2dFuncOptions().p(0.3));
          x = F::alpha_dropout(x, F::AlphaDropoutFuncOptions().p(0.2).training(true));
          x = F::feature_alpha_dropout(x, F::FeatureAlphaDropoutFuncOptions().p(0.2).training(true));
          x = torch::feature_dropout(x, 0.1, true) + torch::dropout(x, 0.5, true) + torch::dropout(x, 0.5, false);
          x = torch::rrelu(x, 0.1, 0.3, /*training=*/true);
          return F::cross_entropy(x.mean({2, 3}), batch["target"]);
        };
      },
      images);
  add("Noise", [](Model& m) -> Loss {
    Base n(m);
    return [n](const Batch& batch) mutable -> Tensor {
      Tensor h = n.a(batch["x"]);
      h = h * torch::rand_like(h) + torch::randn({8, 8}) * 0.1 + at::normal(0.0, 0.1, {8, 8});
      h = h + torch::bernoulli(torch::full({8, 8}, 0.3)) + torch::empty({8, 8}).exponential_(2.0) +
          torch::randint(3, {8, 1});
      h = h.index_select(0, torch::randperm(8)) + torch::empty({8, 8}).uniform_(-1, 1);
      h = h + torch::multinomial(torch::softmax(h.detach(), 1), 8, true).to(at::kFloat) * 0.01;
      h = h + torch::empty({8, 1}).cauchy_().clamp(-1, 1) + torch::empty({8, 1}).geometric_(0.5) * 0.01 +
          torch::poisson(torch::ones({8, 1})) * 0.1 + torch::empty({8, 1}).log_normal_().clamp(0, 1) +
          torch::empty({8, 1}).random_(3) * 0.1;
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
             F::binary_cross_entropy_with_logits(
                 y, t.sigmoid(), F::BinaryCrossEntropyWithLogitsFuncOptions().pos_weight(torch::full({5}, 2.0))) +
             F::binary_cross_entropy(y.sigmoid(), t.sigmoid()) + F::poisson_nll_loss(y, t.exp()) +
             F::soft_margin_loss(y, t.sign()) +
             F::kl_div(torch::log_softmax(y, 1), torch::softmax(t, 1),
                       F::KLDivFuncOptions().reduction(torch::kBatchMean)) +
             F::cosine_embedding_loss(y, t, torch::ones({8})) + F::triplet_margin_loss(y, t, t.flip(0)) +
             F::hinge_embedding_loss(y, t.sign()) + F::margin_ranking_loss(y, t, torch::ones({8, 5})) +
             y.var(1).mean() + y.std() + y.logsumexp(1).mean();
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
  add(
      "CtcWithFixedLengths",
      [](Model& m) -> Loss {
        Base n(m);
        return [n](const Batch& batch) mutable -> Tensor {
          const Tensor y = torch::log_softmax(n.b(n.a(batch["x"])).view({4, 2, 5}), 2);
          return at::ctc_loss(y, batch["target"].clamp_min(1).view({2, 4}).narrow(1, 0, 2), at::IntArrayRef{4, 4},
                              at::IntArrayRef{2, 1});
        };
      },
      vectors);

  add("Activations", [](Model& m) -> Loss {
    Base n(m);
    auto prelu = m.module("prelu", torch::nn::PReLU());
    auto bilinear = m.module("bilinear", torch::nn::Bilinear(8, 8, 8));
    return [n, prelu, bilinear](const Batch& batch) mutable -> Tensor {
      Tensor h = n.a(batch["x"]);
      h = prelu(h) + F::elu(h) + F::selu(h) + F::celu(h) + F::hardtanh(h) + F::softplus(h) + F::mish(h) +
          F::logsigmoid(h) + F::softshrink(h) + F::tanhshrink(h) + at::hardsigmoid(h) + at::hardswish(h) + F::relu6(h) +
          F::glu(torch::cat({h, h}, 1)) + F::gumbel_softmax(h, F::GumbelSoftmaxFuncOptions().hard(true)) +
          bilinear(h, h.flip(1)) + F::normalize(h) + F::threshold(h, F::ThresholdFuncOptions(0.1, 0.2));
      return F::cross_entropy(n.b(h), batch["target"]);
    };
  });
  add(
      "EmbeddingWithMaxNorm",
      [](Model& m) -> Loss {
        auto words = m.module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 8).max_norm(0.5)));
        auto head = m.module("head", torch::nn::Linear(8, 5));
        return [words, head](const Batch& batch) mutable -> Tensor {
          return F::cross_entropy(head(words(batch["x"]).mean(1)), batch["target"]);
        };
      },
      tokens);
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
}

}  // namespace duet::testing
