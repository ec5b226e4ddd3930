#include "benchmarks/models.h"
#include <torch/torch.h>

namespace duet::benchmarks {

namespace {

namespace nn = torch::nn;
using at::Tensor;

struct Lstm : nn::Module {
  Lstm(int64_t width, int64_t vocabulary)
      : tokens(register_module("tokens", nn::Embedding(vocabulary, width))),
        lstm(register_module("lstm", nn::LSTM(nn::LSTMOptions(width, width).batch_first(true)))),
        head(register_module("head", nn::Linear(width, vocabulary))) {}
  Tensor forward(const Tensor& x) { return head(std::get<0>(lstm(tokens(x)))).flatten(0, 1); }

  nn::Embedding tokens;
  nn::LSTM lstm;
  nn::Linear head;
};

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

// A convolution without bias and the batch norm after it.
struct ConvNormImpl : nn::Module {
  ConvNormImpl(int64_t from, int64_t to, int64_t kernel, int64_t stride = 1)
      : conv(register_module(
            "conv", nn::Conv2d(nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false)))),
        norm(register_module("norm", nn::BatchNorm2d(to))) {}
  Tensor forward(const Tensor& x) { return norm(conv(x)); }

  nn::Conv2d conv;
  nn::BatchNorm2d norm;
};
TORCH_MODULE(ConvNorm);

struct Residual : nn::Module {
  Residual(int64_t from, int64_t to, int64_t stride)
      : one(register_module("one", ConvNorm(from, to, 3, stride))), two(register_module("two", ConvNorm(to, to, 3))) {
    if (stride > 1) shortcut = register_module("shortcut", ConvNorm(from, to, 1, stride));
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = two(at::relu(one(x)));
    return at::relu(y + (shortcut.is_empty() ? x : shortcut(x)));
  }

  ConvNorm one, two, shortcut{nullptr};
};

struct ResNet18 : nn::Module {
  ResNet18() : stem(register_module("stem", ConvNorm(3, 64, 7, 2))) {
    for (const auto& [from, to] :
         {std::pair(64, 64), {64, 64}, {64, 128}, {128, 128}, {128, 256}, {256, 256}, {256, 512}, {512, 512}}) {
      blocks->push_back(Residual(from, to, to / from));
    }
    register_module("blocks", blocks);
    head = register_module("head", nn::Linear(512, 10));
  }
  Tensor forward(const Tensor& x) {
    return head(blocks->forward(at::max_pool2d(at::relu(stem(x)), 3, 2, 1)).mean({2, 3}));
  }

  ConvNorm stem;
  nn::Sequential blocks;
  nn::Linear head{nullptr};
};

struct TwiceImpl : nn::Module {
  TwiceImpl(int64_t from, int64_t to)
      : one(register_module("one", ConvNorm(from, to, 3))), two(register_module("two", ConvNorm(to, to, 3))) {}
  Tensor forward(const Tensor& x) { return at::relu(two(at::relu(one(x)))); }

  ConvNorm one, two;
};
TORCH_MODULE(Twice);

struct UNet : nn::Module {
  static nn::ConvTranspose2d up(int64_t from) {
    return nn::ConvTranspose2d(nn::ConvTranspose2dOptions(from, from / 2, 2).stride(2));
  }
  Tensor forward(const Tensor& x) {
    const Tensor first = down1(x);
    const Tensor second = down2(at::max_pool2d(first, 2));
    const Tensor lowest = middle(at::max_pool2d(second, 2));
    const Tensor joined = join2(at::cat({second, up2(lowest)}, 1));
    return head(join1(at::cat({first, up1(joined)}, 1)));
  }

  Twice down1 = register_module("down1", Twice(1, 16)), down2 = register_module("down2", Twice(16, 32)),
        middle = register_module("middle", Twice(32, 64));
  nn::ConvTranspose2d up2 = register_module("up2", up(64));
  Twice join2 = register_module("join2", Twice(64, 32));
  nn::ConvTranspose2d up1 = register_module("up1", up(32));
  Twice join1 = register_module("join1", Twice(32, 16));
  nn::Conv2d head = register_module("head", nn::Conv2d(nn::Conv2dOptions(16, 10, 1)));
};

// Classes of rows, or of pixels.
template <class Module, class... Sizes>
std::unique_ptr<Task> classifier(const char* input, Sizes... sizes) {
  return make_task(
      std::make_shared<Module>(sizes...),
      [input](Module& module, const Batch& batch) { return module.forward(batch[input]); },
      [](const Tensor& logits, const Batch& batch) {
        const Tensor target = batch["target"];
        return at::cross_entropy_loss(logits, logits.dim() == 2 ? target.flatten() : target);
      });
}

}  // namespace

std::unique_ptr<Task> make_lstm(int64_t width, int64_t vocabulary) {
  return classifier<Lstm>("input", width, vocabulary);
}
std::unique_ptr<Task> make_vit(int64_t width, int64_t layers) { return classifier<Vit>("image", width, layers); }
std::unique_ptr<Task> make_bert(int64_t width, int64_t layers) { return classifier<Bert>("input", width, layers); }
std::unique_ptr<Task> make_resnet18() { return classifier<ResNet18>("image"); }
std::unique_ptr<Task> make_unet() { return classifier<UNet>("image"); }

}  // namespace duet::benchmarks
