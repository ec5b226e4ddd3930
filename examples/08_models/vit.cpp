#include "vit.h"
#include <vector>
#include <duet/duet.h>
#include <torch/torch.h>
#include "classifier.h"

const duet::OptionFields& ViTOptions::fields() {
  using O = ViTOptions;
  return duet::described<O>("ViT", [](const auto& add) {
    add.about(
        "A vision transformer: reads image float32 or uint8 [N, C, H, W], target int64 [N] (classes) or float32 [N] "
        "(mse, l1, huber, bce); predicts [N, num_classes].");
    add("num_classes", &O::num_classes, "classes, the width of the output").in(duet::between(1, 1 << 30));
    add("in_channels", &O::in_channels, "channels of the images").in(duet::between(1, 1 << 30));
    add("image_size", &O::image_size, "height and width of the images in pixels, a multiple of patch_size")
        .in(duet::between(1, 1 << 30));
    add("patch_size", &O::patch_size, "height and width of a patch in pixels").in(duet::between(1, 1 << 30));
    add("width", &O::width, "channels of a token, a multiple of heads").in(duet::between(1, 1 << 30));
    add("depth", &O::depth, "blocks").in(duet::between(1, 1 << 30));
    add("heads", &O::heads, "attention heads").in(duet::between(1, 1 << 30));
    add("dropout", &O::dropout, "share of values that is dropped").in(duet::up_to_below(0, 1));
    duet::add_loss_options(add, [](auto member) { return [member](O& o) -> auto& { return o.loss.*member; }; });
    add.rule([](const O& o) {
      if (o.image_size % o.patch_size == 0 && o.width % o.heads == 0) return;
      throw duet::ConfigError(c10::str("[ViT] image_size is ", o.image_size, " and width ", o.width,
                                       ", expected multiples of patch_size = ", o.patch_size,
                                       " and heads = ", o.heads));
    });
  });
}

namespace {

torch::nn::LayerNorm token_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(1e-6));
}

class SelfAttention : public torch::nn::Module {
 public:
  explicit SelfAttention(const ViTOptions& options) : heads_(options.heads) {
    qkv_ = register_module("qkv", torch::nn::Linear(options.width, 3 * options.width));
    proj_ = register_module("proj", torch::nn::Linear(options.width, options.width));
  }

  at::Tensor forward(const at::Tensor& x) {
    const int64_t samples = x.size(0), length = x.size(1), width = x.size(2);
    const std::vector<at::Tensor> parts =
        qkv_->forward(x).reshape({samples, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    return proj_->forward(mixed.transpose(1, 2).reshape({samples, length, width}));
  }

 private:
  int64_t heads_;
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
};

class TokenMlp : public torch::nn::Module {
 public:
  explicit TokenMlp(int64_t width) {
    fc1_ = register_module("fc1", torch::nn::Linear(width, 4 * width));
    fc2_ = register_module("fc2", torch::nn::Linear(4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return fc2_->forward(at::gelu(fc1_->forward(x))); }

 private:
  torch::nn::Linear fc1_{nullptr}, fc2_{nullptr};
};

class ViTBlock : public torch::nn::Module {
 public:
  explicit ViTBlock(const ViTOptions& options) {
    dropout_ = register_module("drop", torch::nn::Dropout(options.dropout));
    norm1_ = register_module("norm1", token_norm(options.width));
    attention_ = register_module("attn", std::make_shared<SelfAttention>(options));
    norm2_ = register_module("norm2", token_norm(options.width));
    mlp_ = register_module("mlp", std::make_shared<TokenMlp>(options.width));
  }
  at::Tensor forward(at::Tensor x) {
    x = x + dropout_->forward(attention_->forward(norm1_->forward(x)));
    return x + dropout_->forward(mlp_->forward(norm2_->forward(x)));
  }

 private:
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  std::shared_ptr<SelfAttention> attention_;
  std::shared_ptr<TokenMlp> mlp_;
  torch::nn::Dropout dropout_{nullptr};
};

class PatchEmbedding : public torch::nn::Module {
 public:
  explicit PatchEmbedding(const ViTOptions& options) {
    const auto patches = torch::nn::Conv2dOptions(options.in_channels, options.width, options.patch_size);
    proj_ = register_module("proj", torch::nn::Conv2d(torch::nn::Conv2dOptions(patches).stride(options.patch_size)));
  }
  at::Tensor forward(const at::Tensor& image) { return proj_->forward(image).flatten(2).transpose(1, 2); }

 private:
  torch::nn::Conv2d proj_{nullptr};
};

class ViT : public torch::nn::Module {
 public:
  explicit ViT(const ViTOptions& options) : in_channels_(options.in_channels), image_size_(options.image_size) {
    const int64_t side = options.image_size / options.patch_size;
    cls_token_ = register_parameter("cls_token", at::zeros({1, 1, options.width}));
    pos_embed_ = register_parameter("pos_embed", at::zeros({1, side * side + 1, options.width}));
    torch::nn::init::normal_(cls_token_, 0, 1e-6);
    torch::nn::init::normal_(pos_embed_, 0, 0.02);
    patch_embed_ = register_module("patch_embed", std::make_shared<PatchEmbedding>(options));
    dropout_ = register_module("pos_drop", torch::nn::Dropout(options.dropout));
    blocks_ = register_module("blocks", torch::nn::Sequential());
    for (int64_t i = 0; i < options.depth; ++i) blocks_->push_back(ViTBlock(options));
    norm_ = register_module("norm", token_norm(options.width));
    head_ = register_module("head", torch::nn::Linear(options.width, options.num_classes));
  }

  at::Tensor forward(const at::Tensor& image) {
    if (image.dim() != 4 || image.size(1) != in_channels_ || image.size(2) != image_size_ ||
        image.size(3) != image_size_) {
      throw duet::ConfigError(c10::str("[ViT] found 'image' of shape ", image.sizes(), ", expected [N, ", in_channels_,
                                       ", ", image_size_, ", ", image_size_, "]",
                                       "; set model.in_channels and model.image_size"));
    }
    const at::Tensor first = cls_token_.expand({image.size(0), 1, cls_token_.size(2)});
    at::Tensor x = dropout_->forward(at::cat({first, patch_embed_->forward(image)}, 1) + pos_embed_);
    x = norm_->forward(blocks_->forward(x));
    return head_->forward(x.select(1, 0));
  }

 private:
  int64_t in_channels_, image_size_;
  at::Tensor cls_token_, pos_embed_;
  std::shared_ptr<PatchEmbedding> patch_embed_;
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Sequential blocks_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};

}  // namespace

std::unique_ptr<duet::Task> make_vit(const ViTOptions& options) {
  duet::check_options(options);
  return make_image_classifier(std::make_shared<ViT>(options), options);
}
