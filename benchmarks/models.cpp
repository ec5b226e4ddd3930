#include "benchmarks/models.h"
#include <torch/torch.h>

namespace duet::benchmarks {

namespace {

namespace nn = torch::nn;
using at::Tensor;

nn::LayerNorm layer_norm(int64_t width) { return nn::LayerNorm(nn::LayerNormOptions({width})); }

// One product with its bias, as in PyTorch's Python; LibTorch's Linear adds it to rows of three dimensions apart.
Tensor linear(const nn::Linear& layer, const Tensor& x) { return at::linear(x, layer->weight, layer->bias); }

enum class Norm { kFirst, kLast };  // as ViT, or as BERT, which has dropout

struct Layer : nn::Module {
  Layer(int64_t width, Norm place)
      : norm_place(place),
        qkv(register_module("qkv", nn::Linear(width, 3 * width))),
        out(register_module("out", nn::Linear(width, width))),
        up(register_module("up", nn::Linear(width, 4 * width))),
        down(register_module("down", nn::Linear(4 * width, width))),
        norm1(register_module("norm1", layer_norm(width))),
        norm2(register_module("norm2", layer_norm(width))) {}

  Tensor attention(const Tensor& x) {
    const int64_t samples = x.size(0), length = x.size(1), width = x.size(2), heads = 4;
    std::vector<Tensor> parts = linear(qkv, x).split(width, 2);
    for (Tensor& part : parts) part = part.view({samples, length, heads, width / heads}).transpose(1, 2);
    const Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    return linear(out, mixed.transpose(1, 2).reshape({samples, length, width}));
  }
  Tensor mlp(const Tensor& x) { return linear(down, at::gelu(linear(up, x))); }

  Tensor forward(Tensor x) {
    if (norm_place == Norm::kFirst) {
      x = x + attention(norm1(x));
      return x + mlp(norm2(x));
    }
    x = norm1(x + at::dropout(attention(x), 0.1, is_training()));
    return norm2(x + at::dropout(mlp(x), 0.1, is_training()));
  }

  Norm norm_place;
  nn::Linear qkv, out, up, down;
  nn::LayerNorm norm1, norm2;
};

nn::Sequential layers_of(int64_t count, int64_t width, Norm place) {
  nn::Sequential layers;
  for (int64_t i = 0; i < count; ++i) layers->push_back(Layer(width, place));
  return layers;
}

struct Vit : nn::Module {
  Vit(int64_t width, int64_t count)
      : patches(register_module("patches", nn::Conv2d(nn::Conv2dOptions(3, width, 4).stride(4)))),
        cls(register_parameter("cls", at::zeros({1, 1, width}))),
        positions(register_parameter("positions", 0.02 * at::randn({1, 65, width}))),
        layers(register_module("layers", layers_of(count, width, Norm::kFirst))),
        norm(register_module("norm", layer_norm(width))),
        head(register_module("head", nn::Linear(width, 10))) {}
  Tensor forward(const Tensor& images) {
    const Tensor x = patches(images).flatten(2).transpose(1, 2);
    const Tensor first = cls.expand({x.size(0), -1, -1});
    return head(norm(layers->forward(at::cat({first, x}, 1) + positions)).select(1, 0));
  }

  nn::Conv2d patches;
  Tensor cls, positions;
  nn::Sequential layers;
  nn::LayerNorm norm;
  nn::Linear head;
};

struct Bert : nn::Module {
  static constexpr int64_t kVocabulary = 1000, kContext = 64;
  Bert(int64_t width, int64_t count)
      : tokens(register_module("tokens", nn::Embedding(kVocabulary, width))),
        positions(register_module("positions", nn::Embedding(kContext, width))),
        norm(register_module("norm", layer_norm(width))),
        layers(register_module("layers", layers_of(count, width, Norm::kLast))),
        head(register_module("head", nn::Linear(width, kVocabulary))) {}
  Tensor forward(const Tensor& x) {
    const Tensor embedded = norm(tokens(x) + positions(at::arange(x.size(1), x.options())));
    return head(layers->forward(at::dropout(embedded, 0.1, is_training()))).flatten(0, 1);
  }

  nn::Embedding tokens, positions;
  nn::LayerNorm norm;
  nn::Sequential layers;
  nn::Linear head;
};

template <class Module, class... Sizes>
std::unique_ptr<Task> classifier(const char* input, Sizes... sizes) {
  return make_task(
      std::make_shared<Module>(sizes...),
      [input](Module& module, const Batch& batch) { return module.forward(batch[input]); },
      [](const Tensor& logits, const Batch& batch) {
        return at::cross_entropy_loss(logits, batch["target"].flatten());
      });
}

}  // namespace

std::unique_ptr<Task> make_vit(int64_t width, int64_t layers) { return classifier<Vit>("image", width, layers); }
std::unique_ptr<Task> make_bert(int64_t width, int64_t layers) { return classifier<Bert>("input", width, layers); }

}  // namespace duet::benchmarks
