#include "cli/zoo/gpt.h"
#include <cmath>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include "cli/zoo/model_input.h"
#include "core/task.h"

namespace duet {

const OptionFields& GptOptions::fields() {
  using O = GptOptions;
  return described<O>("Gpt", [](const auto& add) {
    add.about("A language model: reads input int64 [N, T], target int64 [N, T]; predicts logits [N, T, vocab_size].");
    add("vocab_size", &O::vocab_size, "tokens; 0 in a config: as many as the training data has")
        .in(between(0, kSizes.high));
    add("n_layer", &O::n_layer, "blocks").in(kSizes);
    add("n_head", &O::n_head, "attention heads").in(kSizes);
    add("n_embd", &O::n_embd, "width, a multiple of n_head").in(kSizes);
    add("context", &O::context, "longest sequence in tokens").in(kSizes);
    add("dropout", &O::dropout, "share of values that is dropped").in(up_to_below(0, 1));
    add.rule([](const O& o) {
      require<ConfigError>(o.vocab_size > 0, "[Gpt] vocab_size is 0, expected the number of tokens");
      if (o.n_embd % o.n_head == 0) return;
      throw ConfigError(c10::str("[Gpt] n_embd is ", o.n_embd, ", expected a multiple of n_head = ", o.n_head));
    });
  });
}

namespace {

// One product with its bias, as in PyTorch's Python; LibTorch's Linear adds it to rows of three dimensions apart.
at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

torch::nn::LayerNorm norm_of_width(int64_t width) { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})); }

class Attention : public torch::nn::Module {
 public:
  explicit Attention(const GptOptions& options) : heads_(options.n_head), dropout_(options.dropout) {
    qkv_ = register_module("qkv", torch::nn::Linear(options.n_embd, 3 * options.n_embd));
    out_ = register_module("out", torch::nn::Linear(options.n_embd, options.n_embd));
    residual_dropout_ = register_module("dropout", torch::nn::Dropout(options.dropout));
  }

  at::Tensor forward(const at::Tensor& x) {
    const int64_t samples = x.size(0), length = x.size(1), width = x.size(2);
    const std::vector<at::Tensor> parts = linear(qkv_, x).split(width, 2);
    const auto by_head = [&](const at::Tensor& part) {
      return part.view({samples, length, heads_, width / heads_}).transpose(1, 2);
    };
    const at::Tensor mixed = at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]),
                                                              {}, is_training() ? dropout_ : 0.0, /*is_causal=*/true);
    return residual_dropout_->forward(linear(out_, mixed.transpose(1, 2).reshape({samples, length, width})));
  }

 private:
  int64_t heads_;
  double dropout_;
  torch::nn::Linear qkv_{nullptr}, out_{nullptr};
  torch::nn::Dropout residual_dropout_{nullptr};
};

class Block : public torch::nn::Module {
 public:
  explicit Block(const GptOptions& options) {
    norm1_ = register_module("norm1", norm_of_width(options.n_embd));
    attention_ = register_module("attention", std::make_shared<Attention>(options));
    norm2_ = register_module("norm2", norm_of_width(options.n_embd));
    up_ = register_module("up", torch::nn::Linear(options.n_embd, 4 * options.n_embd));
    down_ = register_module("down", torch::nn::Linear(4 * options.n_embd, options.n_embd));
    dropout_ = register_module("dropout", torch::nn::Dropout(options.dropout));
  }

  at::Tensor forward(at::Tensor x) {
    x = x + attention_->forward(norm1_->forward(x));
    return x + dropout_->forward(linear(down_, at::gelu(linear(up_, norm2_->forward(x)), "tanh")));
  }

 private:
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  std::shared_ptr<Attention> attention_;
  torch::nn::Linear up_{nullptr}, down_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};

class Gpt : public torch::nn::Module {
 public:
  explicit Gpt(const GptOptions& options) : context_(options.context) {
    tokens_ = register_module("tokens", torch::nn::Embedding(options.vocab_size, options.n_embd));
    positions_ = register_module("positions", torch::nn::Embedding(options.context, options.n_embd));
    dropout_ = register_module("dropout", torch::nn::Dropout(options.dropout));
    for (int64_t i = 0; i < options.n_layer; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>(options)));
    }
    norm_ = register_module("norm", norm_of_width(options.n_embd));
    initialize(options.n_layer);
  }

  at::Tensor forward(const at::Tensor& input) {
    if (input.dim() != 2 || input.size(1) > context_) {
      throw ConfigError(c10::str("[Gpt] found 'input' of shape ", input.sizes(),
                                 ", expected [N, T] with T <= context = ", context_,
                                 "; set model.context to the data's context"));
    }
    const at::Tensor places = at::arange(input.size(1), input.options());
    at::Tensor x = dropout_->forward(tokens_->forward(input) + positions_->forward(places));
    for (const auto& block : blocks_) x = block->forward(x);
    return at::linear(norm_->forward(x), tokens_->weight);
  }

 private:
  // GPT-2: N(0, 0.02), smaller for the two layers of a block that add to the residual; biases zero.
  void initialize(int64_t layers) {
    const at::NoGradGuard no_grad;
    const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(layers));
    for (const auto& item : named_parameters()) {
      const std::string& name = item.key();
      const auto ends_with = [&](const char* end) { return name.ends_with(end); };
      if (name.find("norm") != std::string::npos) continue;
      if (ends_with("bias")) {
        item.value().zero_();
      } else {
        item.value().normal_(0.0, ends_with("out.weight") || ends_with("down.weight") ? residual : 0.02);
      }
    }
  }

  int64_t context_;
  torch::nn::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  std::vector<std::shared_ptr<Block>> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
};

class GptTask : public ModuleTask<Gpt> {
 public:
  explicit GptTask(const GptOptions& options)
      : ModuleTask(std::make_shared<Gpt>(options), nullptr, loss_of, tokens_in), blocks_(options.n_layer) {}

  // The embeddings, of which one is the head too, the blocks, the last norm.
  std::optional<LayerDepth> layer_depth(const std::string& name) const override {
    const bool in_block = name.rfind("block", 0) == 0;
    const int64_t id = in_block ? std::stoll(name.substr(5)) + 1 : name.rfind("norm", 0) == 0 ? blocks_ + 1 : 0;
    return LayerDepth{id, blocks_ + 2};
  }
  NamedTensors predict(const Batch& batch) override { return {{"prediction", module().forward(batch["input"])}}; }

 private:
  static StepOutput loss_of(Gpt& model, const at::Tensor& /*prediction*/, const Batch& batch) {
    const at::Tensor logits = model.forward(batch["input"]);
    return {at::cross_entropy_loss(logits.flatten(0, 1), batch["target"].flatten()), {}};
  }
  static double tokens_in(const Batch& batch) { return static_cast<double>(counted_targets(batch["target"])); }

  int64_t blocks_;
};

}  // namespace

std::unique_ptr<Task> make_gpt(const GptOptions& options) {
  check_options(options);
  return std::make_unique<GptTask>(options);
}

}  // namespace duet
