#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

template <class Holder, class Options>
std::function<Apply(Site&)> norm_of(Options options) {
  return [options](Site& site) -> Apply {
    auto norm = site.module(Holder(options));
    return [norm](X x) mutable { return bounded(norm(x[0])); };
  };
}

void add_norm_cases(OpTable& add) {
  add("batch_norm1d", "m>m", norm_of<nn::BatchNorm1d>(nn::BatchNorm1dOptions(kColumns)));
  add("batch_norm1d_of_sequence", "s>s", norm_of<nn::BatchNorm1d>(nn::BatchNorm1dOptions(4)));
  add("batch_norm2d", "i>i", norm_of<nn::BatchNorm2d>(nn::BatchNorm2dOptions(4)));
  add("batch_norm2d_plain", "i>i", norm_of<nn::BatchNorm2d>(nn::BatchNorm2dOptions(4).affine(false)));
  add("batch_norm2d_untracked", "i>i", norm_of<nn::BatchNorm2d>(nn::BatchNorm2dOptions(4).track_running_stats(false)));
  add("batch_norm2d_cumulative", "i>i", norm_of<nn::BatchNorm2d>(nn::BatchNorm2dOptions(4).momentum(c10::nullopt)));
  add("batch_norm3d", "i>i", [](Site& site) -> Apply {
    auto norm = site.module(nn::BatchNorm3d(4));
    return [norm](X x) mutable { return bounded(norm(x[0].unsqueeze(2)).squeeze(2)); };
  });
  add("batch_norm_in_eval", "m>m", [](Site& site) -> Apply {
    auto norm = site.module(nn::BatchNorm1d(kColumns));
    return [norm](X x) mutable {
      norm->eval();
      return bounded(norm(x[0]));
    };
  });
  add("instance_norm1d", "s>s", norm_of<nn::InstanceNorm1d>(nn::InstanceNorm1dOptions(4).affine(true)));
  add("instance_norm2d", "i>i", norm_of<nn::InstanceNorm2d>(nn::InstanceNorm2dOptions(4)));
  add("instance_norm2d_tracked", "i>i",
      norm_of<nn::InstanceNorm2d>(nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)));
  add("group_norm", "i>i", [](Site& site) -> Apply {
    auto norm = site.module(nn::GroupNorm(2, 4));
    // LibTorch 2.11 crashes in the backward of an input that is channels-last and needs no gradient.
    return [norm](X x) mutable { return bounded(norm(x[0].requires_grad() ? x[0] : x[0].contiguous())); };
  });
  add("layer_norm", "m>m", norm_of<nn::LayerNorm>(nn::LayerNormOptions({kColumns})));
  add("layer_norm_of_sequence", "s>s", norm_of<nn::LayerNorm>(nn::LayerNormOptions({4, 8}).elementwise_affine(false)));
  add("rms_norm", "m>m", [](Site& site) -> Apply {
    const Tensor scale = site.parameter({kColumns});
    return [scale](X x) { return bounded(at::rms_norm(x[0], {kColumns}, scale, 1e-5)); };
  });
  add("weight_norm", "m>m", [](Site& site) -> Apply {
    const Tensor direction = site.parameter({kColumns, kColumns});
    return
        [direction](X x) { return bounded(x[0].matmul(at::_weight_norm(direction, torch::ones({kColumns, 1}), 0))); };
  });
  add("spectral_norm", "m>m", [](Site& site) -> Apply {
    const Tensor weight = site.parameter({kColumns, kColumns});
    const Tensor u = site.model.register_buffer(site.name + "_u", torch::ones({kColumns}) * 0.25);
    return [weight, u](X x) mutable {
      Tensor v;
      {
        const torch::NoGradGuard no_grad;
        v = F::normalize(weight.t().mv(u), F::NormalizeFuncOptions().dim(0));
        u.copy_(F::normalize(weight.mv(v), F::NormalizeFuncOptions().dim(0)));
      }
      return bounded(x[0].matmul(weight / u.clone().dot(weight.mv(v.clone()))));
    };
  });
}

void add_recurrent_cases(OpTable& add) {
  add("lstm", "s>s", [](Site& site) -> Apply {
    auto lstm = site.module(nn::LSTM(nn::LSTMOptions(8, 8).batch_first(true).num_layers(site.number(1, 2))));
    return [lstm](X x) mutable { return std::get<0>(lstm(x[0])); };
  });
  add("lstm_in_both_directions", "s>s", [](Site& site) -> Apply {
    auto lstm = site.module(nn::LSTM(nn::LSTMOptions(8, 4).batch_first(true).bidirectional(true)));
    return [lstm](X x) mutable { return std::get<0>(lstm(x[0])); };
  });
  add("lstm_with_dropout", "s>s", [](Site& site) -> Apply {
    auto lstm = site.module(nn::LSTM(nn::LSTMOptions(8, 8).batch_first(true).num_layers(2).dropout(0.3)));
    return [lstm](X x) mutable { return std::get<0>(lstm(x[0])); };
  });
  add("lstm_last_state", "s>m", [](Site& site) -> Apply {
    auto lstm = site.module(nn::LSTM(nn::LSTMOptions(8, 8).batch_first(true)));
    return [lstm](X x) mutable {
      const auto [h, c] = std::get<1>(lstm(x[0]));
      return as_matrix(torch::cat({h[0], c[0], h[0], c[0]}, 1));
    };
  });
  add("gru", "s>s", [](Site& site) -> Apply {
    auto gru = site.module(nn::GRU(nn::GRUOptions(8, 8).batch_first(true)));
    return [gru](X x) mutable { return std::get<0>(gru(x[0])); };
  });
  add("gru_in_both_directions", "s>s", [](Site& site) -> Apply {
    auto gru =
        site.module(nn::GRU(nn::GRUOptions(8, 4).batch_first(true).bidirectional(true).num_layers(2).dropout(0.2)));
    return [gru](X x) mutable { return std::get<0>(gru(x[0])); };
  });
  add("rnn", "s>s", [](Site& site) -> Apply {
    nn::RNNOptions options(8, 8);
    options.batch_first(true);
    if (site.coin()) options.nonlinearity(torch::kReLU);
    auto rnn = site.module(nn::RNN(options));
    return [rnn](X x) mutable { return bounded(std::get<0>(rnn(x[0]))); };
  });
  add("lstm_cell", "s>s", [](Site& site) -> Apply {
    auto cell = site.module(nn::LSTMCell(8, 8));
    return [cell](X x) mutable {
      Tensor h = torch::zeros({x[0].size(0), 8});
      Tensor c = torch::zeros({x[0].size(0), 8});
      Tensors steps;
      for (const Tensor& step : x[0].unbind(1)) {
        std::tie(h, c) = cell(step, std::make_tuple(h, c));
        steps.push_back(h);
      }
      return torch::stack(steps, 1);
    };
  });
  add("gru_cell", "s>s", [](Site& site) -> Apply {
    auto cell = site.module(nn::GRUCell(8, 8));
    return [cell](X x) mutable { return x[0] + cell(x[0].select(1, 0)).unsqueeze(1); };
  });
}

void add_attention_cases(OpTable& add) {
  add.plain("attention", "s>s", [](X x) { return at::scaled_dot_product_attention(x[0], x[0].flip(1), x[0]); });
  add.plain("causal_attention", "s>s",
            [](X x) { return at::scaled_dot_product_attention(x[0], x[0], x[0].sin(), {}, 0.0, /*is_causal=*/true); });
  add.plain("attention_with_heads", "s>s", [](X x) {
    const Tensor heads = x[0].view({-1, 4, 2, 4}).transpose(1, 2);
    return at::scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape({-1, 4, 8});
  });
  add.plain("attention_with_mask", "s>s", [](X x) {
    const Tensor mask = torch::ones({4, 4}, at::kBool).tril();
    return at::scaled_dot_product_attention(x[0], x[0], x[0], mask);
  });
  add.plain("attention_with_bias", "sm>s", [](X x) {
    return at::scaled_dot_product_attention(x[0], x[0], x[0], x[1].narrow(0, 0, 4).narrow(1, 0, 4));
  });
  add.plain("attention_with_dropout", "s>s",
            [](X x) { return bounded(at::scaled_dot_product_attention(x[0], x[0], x[0], {}, 0.2)); });
  add.plain("attention_by_hand", "s>s", [](X x) {
    const Tensor weights = (x[0].matmul(x[0].transpose(1, 2)) / std::sqrt(8.0)).softmax(-1);
    return weights.matmul(x[0]);
  });
  add("multihead_attention", "s>s", [](Site& site) -> Apply {
    auto attention = site.module(nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).dropout(0.1)));
    return [attention](X x) mutable {
      const Tensor steps = x[0].transpose(0, 1);
      return bounded(std::get<0>(attention(steps, steps, steps))).transpose(0, 1);
    };
  });
  add("transformer_layer", "s>s", [](Site& site) -> Apply {
    auto layer = site.module(nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12)));
    return [layer](X x) mutable { return bounded(layer(x[0].transpose(0, 1))).transpose(0, 1); };
  });
  add("transformer_decoder_layer", "s>s", [](Site& site) -> Apply {
    auto layer = site.module(nn::TransformerDecoderLayer(nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(12)));
    return [layer](X x) mutable {
      return bounded(layer(x[0].transpose(0, 1), x[0].flip(1).transpose(0, 1))).transpose(0, 1);
    };
  });
}

}  // namespace

void add_layer_cases(OpTable& add) {
  add("linear", "m>m", [](Site& site) -> Apply {
    auto layer = site.module(nn::Linear(nn::LinearOptions(kColumns, kColumns).bias(site.coin())));
    return [layer](X x) mutable { return bounded(layer(x[0])); };
  });
  add("linear_of_sequence", "s>s", [](Site& site) -> Apply {
    auto layer = site.module(nn::Linear(8, 8));
    return [layer](X x) mutable { return bounded(layer(x[0])); };
  });
  add("mlp", "m>m", [](Site& site) -> Apply {
    auto layer =
        site.module(nn::Sequential(nn::Linear(kColumns, 32), nn::GELU(), nn::Linear(32, kColumns), nn::Tanh()));
    return [layer](X x) mutable { return layer->forward(x[0]); };
  });
  add("bilinear", "mm>m", [](Site& site) -> Apply {
    auto layer = site.module(nn::Bilinear(kColumns, kColumns, kColumns));
    return [layer](X x) mutable { return bounded(layer(x[0], x[1])); };
  });
  add("tied_linear", "m>m", [](Site& site) -> Apply {
    const Tensor weight = site.parameter({kColumns, kColumns});
    return [weight](X x) { return bounded(F::linear(F::linear(x[0], weight).tanh(), weight.t())); };
  });
  add("residual_without_gradient", "m>m", [](Site& site) -> Apply {
    auto layer = site.module(nn::Linear(kColumns, kColumns));
    for (Tensor& parameter : layer->parameters()) parameter.requires_grad_(false);
    return [layer](X x) mutable { return bounded(x[0] + layer(x[0])); };
  });
  add_norm_cases(add);
  add_recurrent_cases(add);
  add_attention_cases(add);
}

}  // namespace duet::testing::fuzz
