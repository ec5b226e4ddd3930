#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

void add_norm_cases(OpTable& add) {
  add.layer<nn::BatchNorm1d>("batch_norm1d", "m>m", nn::BatchNorm1dOptions(kColumns));
  add.layer<nn::BatchNorm2d>("batch_norm2d", "i>i", nn::BatchNorm2dOptions(4));
  add.layer<nn::BatchNorm2d>("batch_norm2d_plain", "i>i", nn::BatchNorm2dOptions(4).affine(false));
  add.layer<nn::BatchNorm2d>("batch_norm2d_untracked", "i>i", nn::BatchNorm2dOptions(4).track_running_stats(false));
  add.layer<nn::BatchNorm2d>("batch_norm2d_cumulative", "i>i", nn::BatchNorm2dOptions(4).momentum(c10::nullopt));
  add("batch_norm_in_eval", "m>m", [](Site& site) -> Apply {
    auto norm = site.module(nn::BatchNorm1d(kColumns));
    return [norm](X x) mutable {
      norm->eval();
      return bounded(norm(x[0]));
    };
  });
  add.layer<nn::InstanceNorm2d>("instance_norm2d_tracked", "i>i",
                                nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true));
  add("group_norm", "i>i", [](Site& site) -> Apply {
    auto norm = site.module(nn::GroupNorm(2, 4));
    // LibTorch 2.11 crashes in the backward of an input that is channels-last and needs no gradient.
    return [norm](X x) mutable { return bounded(norm(x[0].requires_grad() ? x[0] : x[0].contiguous())); };
  });
  add.layer<nn::LayerNorm>("layer_norm", "m>m", nn::LayerNormOptions({kColumns}));
  add.weighted("rms_norm", "m>m", {kColumns},
               [](X x, const Tensor& scale) { return bounded(at::rms_norm(x[0], {kColumns}, scale, 1e-5)); });
  add.weighted("weight_norm", "m>m", {kColumns, kColumns}, [](X x, const Tensor& direction) {
    return bounded(x[0].matmul(at::_weight_norm(direction, torch::ones({kColumns, 1}), 0)));
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
  add.layer<nn::LSTM>("lstm", "s>s", nn::LSTMOptions(8, 8).batch_first(true));
  add.layer<nn::LSTM>("lstm_in_both_directions", "s>s", nn::LSTMOptions(8, 4).batch_first(true).bidirectional(true));
  add.layer<nn::LSTM>("lstm_with_dropout", "s>s", nn::LSTMOptions(8, 8).batch_first(true).num_layers(2).dropout(0.3));
  add.layer<nn::LSTM>("lstm_with_projection", "s>s", nn::LSTMOptions(8, 12).batch_first(true).proj_size(8));
  add.layer<nn::GRU>("gru", "s>s", nn::GRUOptions(8, 8).batch_first(true));
  add.layer<nn::GRU>("gru_in_both_directions", "s>s",
                     nn::GRUOptions(8, 4).batch_first(true).bidirectional(true).num_layers(2).dropout(0.2));
  add.layer<nn::RNN>("rnn_with_relu", "s>s", nn::RNNOptions(8, 8).batch_first(true).nonlinearity(torch::kReLU));
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
}

void add_attention_cases(OpTable& add) {
  add.plain("attention", "s>s", [](X x) { return at::scaled_dot_product_attention(x[0], x[0].flip(1), x[0]); });
  add.plain("causal_attention", "s>s",
            [](X x) { return at::scaled_dot_product_attention(x[0], x[0], x[0].sin(), {}, 0.0, /*is_causal=*/true); });
  add.plain("attention_with_mask", "s>s", [](X x) {
    const Tensor mask = torch::ones({4, 4}, at::kBool).tril();
    return at::scaled_dot_product_attention(x[0], x[0], x[0], mask);
  });
  add.plain("attention_with_bias", "sm>s", [](X x) {
    return at::scaled_dot_product_attention(x[0], x[0], x[0], x[1].narrow(0, 0, 4).narrow(1, 0, 4));
  });
  add.plain("attention_with_dropout", "s>s",
            [](X x) { return bounded(at::scaled_dot_product_attention(x[0], x[0], x[0], {}, 0.2)); });
  add("multihead_attention", "s>s", [](Site& site) -> Apply {
    auto attention = site.module(nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).dropout(0.1)));
    return [attention](X x) mutable {
      const Tensor steps = x[0].transpose(0, 1);
      return bounded(std::get<0>(attention(steps, steps, steps))).transpose(0, 1);
    };
  });
  add("multihead_attention_with_masks", "s>s", [](Site& site) -> Apply {
    auto attention = site.module(nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2)));
    return [attention](X x) mutable {
      const Tensor steps = x[0].transpose(0, 1);
      const Tensor later = torch::ones({4, 4}, at::kBool).triu(1);
      const Tensor padding = (x[0].select(2, 0) > 0.5).logical_and(torch::arange(4) > 0);
      const auto [y, weights] = attention->forward(steps, steps, steps, padding, /*need_weights=*/true, later);
      return bounded(y.transpose(0, 1) + weights.square().mean());
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
  add.layer<nn::Linear>("linear", "m>m", nn::LinearOptions(kColumns, kColumns));
  add("bilinear", "mm>m", [](Site& site) -> Apply {
    auto layer = site.module(nn::Bilinear(kColumns, kColumns, kColumns));
    return [layer](X x) mutable { return bounded(layer(x[0], x[1])); };
  });
  add_norm_cases(add);
  add_recurrent_cases(add);
  add_attention_cases(add);
}

}  // namespace duet::testing::fuzz
