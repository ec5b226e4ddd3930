#include "cli/zoo/encoder_decoder.h"
#include <string>
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/feature_dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pixel_shuffle.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include "cli/zoo/model_input.h"
#include "core/task.h"

namespace duet {

const OptionFields& EncoderDecoderOptions::fields() {
  using O = EncoderDecoderOptions;
  return described<O>("EncoderDecoder", [](const auto& add) {
    add.about(
        "Segmentation: reads image float32 or uint8 [N, C, H, W], target int64 [N, H, W]; predicts logits [N, classes, "
        "H, W].");
    add("num_classes", &O::num_classes, "classes, background included").in(kSizes);
    add("in_channels", &O::in_channels, "channels of the images").in(kSizes);
    add("patch_size", &O::patch_size, "pixels in each direction that the stem makes one of; even").in(kSizes);
    add("channels", &O::channels, "channels of the encoder's stages, 1 to 4").in(kSizes);
    add("depths", &O::depths, "blocks of each stage").in(kSizes);
    add("decoder_channels", &O::decoder_channels, "channels of the decoder").in(kSizes);
    add("drop_path", &O::drop_path, "chance that a sample skips the last block").in(up_to_below(0, 1));
    add("dropout", &O::dropout, "share of values that is dropped").in(up_to_below(0, 1));
    add_loss_options(add, [](auto member) { return [member](O& o) -> auto& { return o.loss.*member; }; },
                     {"cross_entropy", "focal", "dice"});
    add.rule([](const O& o) {
      require<ConfigError>(o.patch_size % 2 == 0,
                           c10::str("[EncoderDecoder] patch_size is ", o.patch_size, ", expected an even number"));
      if (!o.channels.empty() && o.channels.size() <= 4 && o.channels.size() == o.depths.size()) return;
      throw ConfigError(c10::str("[EncoderDecoder] channels has ", o.channels.size(), " entries and depths ",
                                 o.depths.size(), ", expected as many, 1 to 4: one for each stage"));
    });
  });
}

namespace {

torch::nn::LayerNorm layer_norm(int64_t width) { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})); }

// Patches of twice the stride, which overlap: they learn faster than the ones of ConvNeXt.
torch::nn::Conv2d shrinking(int64_t from, int64_t to, int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 2 * stride).stride(stride).padding(stride / 2));
}

torch::nn::Conv2d pointwise(int64_t from, int64_t to) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 1));
}

// Channels last, where a linear layer and a layer norm want them. Costs nothing for a tensor in that memory format.
at::Tensor to_rows(const at::Tensor& x) { return x.permute({0, 2, 3, 1}); }
at::Tensor to_planes(const at::Tensor& x) { return x.permute({0, 3, 1, 2}); }

// Normalisation and a convolution: in this order but for the first, which has nothing to normalise yet.
class Downsample : public torch::nn::Module {
 public:
  Downsample(int64_t from, int64_t to, int64_t stride, bool is_stem) : is_stem_(is_stem) {
    convolution_ = register_module(is_stem ? "0" : "1", shrinking(from, to, stride));
    norm_ = register_module(is_stem ? "1" : "0", torch::nn::BatchNorm2d(is_stem ? to : from));
  }

  at::Tensor forward(const at::Tensor& x) {
    if (!is_stem_) return convolution_->forward(norm_->forward(x));
    // From here on channels are last in memory.
    return norm_->forward(convolution_->forward(x).contiguous(at::MemoryFormat::ChannelsLast));
  }

 private:
  bool is_stem_;
  torch::nn::Conv2d convolution_{nullptr};
  torch::nn::BatchNorm2d norm_{nullptr};
};

// With batch norm where ConvNeXt has layer norm, and without its layer scale: both matter in long runs, this learns
// sooner.
class ConvNeXtBlock : public torch::nn::Module {
 public:
  ConvNeXtBlock(int64_t width, double drop_path) : drop_path_(drop_path) {
    depthwise_ = register_module("depthwise_conv",
                                 torch::nn::Conv2d(torch::nn::Conv2dOptions(width, width, 7).padding(3).groups(width)));
    norm_ = register_module("norm", torch::nn::BatchNorm2d(width));
    widen_ = register_module("pointwise_conv1", torch::nn::Linear(width, 4 * width));
    narrow_ = register_module("pointwise_conv2", torch::nn::Linear(4 * width, width));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor rows = to_rows(norm_->forward(depthwise_->forward(x)));
    const at::Tensor branch = to_planes(narrow_->forward(at::gelu(widen_->forward(rows))));
    if (drop_path_ == 0 || !is_training()) return x + branch;
    // One draw for each sample; those that stay are scaled up, as dropout does.
    const at::Tensor stays = at::dropout(at::ones({x.size(0), 1, 1, 1}, branch.options()), drop_path_, /*train=*/true);
    return x + branch * stays;
  }

 private:
  double drop_path_;
  torch::nn::Conv2d depthwise_{nullptr};
  torch::nn::BatchNorm2d norm_{nullptr};
  torch::nn::Linear widen_{nullptr}, narrow_{nullptr};
};

class ConvNeXt : public torch::nn::Module {
 public:
  explicit ConvNeXt(const EncoderDecoderOptions& options) {
    register_module("downsample_layers", downsample_);
    register_module("stages", stages_);
    int64_t total = 0, built = 0, from = options.in_channels;
    for (const int64_t depth : options.depths) total += depth;
    for (std::size_t stage = 0; stage < options.channels.size(); ++stage) {
      const int64_t width = options.channels[stage];
      const int64_t stride = stage == 0 ? options.patch_size : 2;
      downsample_->push_back(std::make_shared<Downsample>(from, width, stride, /*is_stem=*/stage == 0));
      torch::nn::ModuleList blocks;
      for (int64_t i = 0; i < options.depths[stage]; ++i, ++built) {
        const double share = total == 1 ? 1.0 : static_cast<double>(built) / static_cast<double>(total - 1);
        blocks->push_back(std::make_shared<ConvNeXtBlock>(width, share * options.drop_path));
      }
      stages_->push_back(blocks);
      norms_.push_back(register_module("norm" + std::to_string(stage), layer_norm(width)));
      from = width;
    }
  }

  // One map of features for each stage, finest first.
  std::vector<at::Tensor> forward(at::Tensor x) {
    std::vector<at::Tensor> features;
    for (std::size_t stage = 0; stage < norms_.size(); ++stage) {
      x = downsample_->at<Downsample>(stage).forward(x);
      for (const auto& block : stages_->at<torch::nn::ModuleListImpl>(stage))
        x = block->as<ConvNeXtBlock>()->forward(x);
      features.push_back(to_planes(norms_[stage]->forward(to_rows(x))));
    }
    return features;
  }

 private:
  torch::nn::ModuleList downsample_, stages_;
  std::vector<torch::nn::LayerNorm> norms_;
};

// Features of all stages added up at the finest resolution. The last layer gives the patch's pixels as channels, which
// an upsampling of logits would only smear; its gradient is also the same every time on a GPU.
class FeaturePyramidHead : public torch::nn::Module {
 public:
  explicit FeaturePyramidHead(const EncoderDecoderOptions& options)
      : patch_size_(options.patch_size), dropout_(options.dropout) {
    const int64_t width = options.decoder_channels;
    register_module("lateral_convs", lateral_);
    for (const int64_t channels : options.channels) lateral_->push_back(pointwise(channels, width));
    // Batch norm takes the mean away, and a bias with it.
    bottleneck_ = register_module("fpn_bottleneck",
                                  torch::nn::Conv2d(torch::nn::Conv2dOptions(width, width, 3).padding(1).bias(false)));
    norm_ = register_module("bn", torch::nn::BatchNorm2d(width));
    classify_ = register_module("conv_seg", pointwise(width, options.num_classes * patch_size_ * patch_size_));
  }

  at::Tensor forward(const std::vector<at::Tensor>& features) {
    const auto lateral = [&](std::size_t stage) {
      return lateral_->at<torch::nn::Conv2dImpl>(stage).forward(features[stage]);
    };
    at::Tensor x = lateral(features.size() - 1);
    for (std::size_t stage = features.size() - 1; stage-- > 0;) {
      const at::Tensor& finer = features[stage];
      x = lateral(stage) + at::upsample_nearest2d(x, {finer.size(2), finer.size(3)});
    }
    x = at::relu(norm_->forward(bottleneck_->forward(x)));
    return at::pixel_shuffle(classify_->forward(at::feature_dropout(x, dropout_, is_training())), patch_size_);
  }

 private:
  int64_t patch_size_;
  double dropout_;
  torch::nn::ModuleList lateral_;
  torch::nn::Conv2d bottleneck_{nullptr}, classify_{nullptr};
  torch::nn::BatchNorm2d norm_{nullptr};
};

class EncoderDecoder : public torch::nn::Module {
 public:
  explicit EncoderDecoder(const EncoderDecoderOptions& options)
      : in_channels_(options.in_channels), multiple_(options.patch_size << (options.channels.size() - 1)) {
    backbone_ = register_module("backbone", std::make_shared<ConvNeXt>(options));
    decode_head_ = register_module("decode_head", std::make_shared<FeaturePyramidHead>(options));
  }

  at::Tensor forward(const at::Tensor& x) {
    if (x.dim() != 4 || x.size(1) != in_channels_ || x.size(2) % multiple_ != 0 || x.size(3) % multiple_ != 0) {
      throw ConfigError(c10::str("[EncoderDecoder] found 'image' of shape ", x.sizes(), ", expected [N, ", in_channels_,
                                 ", H, W] with H and W multiples of ", multiple_,
                                 "; set model.in_channels, or the size of the images", kShapeWayOut));
    }
    return decode_head_->forward(backbone_->forward(x));
  }

 private:
  int64_t in_channels_, multiple_;
  std::shared_ptr<ConvNeXt> backbone_;
  std::shared_ptr<FeaturePyramidHead> decode_head_;
};

// In a mask: not to be learned and not counted.
constexpr int64_t kNoLabel = 255;

// Logs acc_seg.
class SegmentationTask : public ModuleTask<EncoderDecoder> {
 public:
  explicit SegmentationTask(const EncoderDecoderOptions& options)
      : ModuleTask(
            std::make_shared<EncoderDecoder>(options), logits_of,
            [loss = options.loss](EncoderDecoder&, const at::Tensor& logits, const Batch& batch) {
              return loss_and_accuracy(loss, logits, batch["target"]);
            },
            [loss = options.loss, classes = options.num_classes](const Batch& batch) {
              return loss_weight(loss, batch["target"],
                                 {.ignored = kNoLabel, .classes = classes, .sample_ids = batch.sample_ids()});
            }),
        options_(options.loss) {}

  // Without the accuracy, which metrics say better.
  NamedTensors validation_step(const Batch& batch) override {
    const at::Tensor logits = logits_of(module(), batch);
    return {{"loss", loss_of(options_, logits, batch["target"], kNoLabel)}, {"prediction", logits}};
  }

 private:
  static at::Tensor logits_of(EncoderDecoder& model, const Batch& batch) {
    return model.forward(model_input(batch, "image"));
  }
  static StepOutput loss_and_accuracy(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target) {
    const at::Tensor loss = loss_of(options, logits, target, kNoLabel);
    const at::Tensor counts = target.ne(kNoLabel);
    const at::Tensor right = at::logical_and(at::argmax(logits.detach(), 1).eq(target), counts);
    return {loss, {{"acc_seg", right.sum() / counts.sum().clamp_min(1)}}};
  }

  LossOptions options_;
};

}  // namespace

std::unique_ptr<Task> make_encoder_decoder(const EncoderDecoderOptions& options) {
  check_options(options);
  return std::make_unique<SegmentationTask>(options);
}

}  // namespace duet
