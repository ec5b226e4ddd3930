#include "unet.h"
#include <duet/duet.h>
#include <torch/torch.h>
#include "classifier.h"

const duet::OptionFields& UNetOptions::fields() {
  using O = UNetOptions;
  return duet::described<O>("UNet", [](const auto& add) {
    add.about(
        "Segmentation: reads image float32 or uint8 [N, C, H, W], target int64 [N, H, W]; predicts logits [N, classes, "
        "H, W].");
    add("num_classes", &O::num_classes, "classes, background included").in(duet::between(1, 1 << 30));
    add("in_channels", &O::in_channels, "channels of the images").in(duet::between(1, 1 << 30));
    add("channels", &O::channels, "channels of the levels; each after the first halves the resolution")
        .in(duet::between(1, 1 << 30));
    const auto of = [](auto member) { return [member](O& o) -> auto& { return o.loss.*member; }; };
    duet::add_loss_options(add, of, {"cross_entropy", "focal", "dice"});
    add.rule([](const O& o) {
      if (!o.channels.empty() && o.channels.size() <= 8) return;
      throw duet::ConfigError(c10::str("[UNet] channels has ", o.channels.size(), " levels, expected 1 to 8"));
    });
  });
}

namespace {

class DoubleConv : public torch::nn::Module {
 public:
  DoubleConv(int64_t from, int64_t to) {
    // Batch norm takes the mean away, and a bias with it.
    const auto conv = [](int64_t in, int64_t out) {
      return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
    };
    conv1_ = register_module("conv1", conv(from, to));
    bn1_ = register_module("bn1", torch::nn::BatchNorm2d(to));
    conv2_ = register_module("conv2", conv(to, to));
    bn2_ = register_module("bn2", torch::nn::BatchNorm2d(to));
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::relu(bn2_->forward(conv2_->forward(at::relu(bn1_->forward(conv1_->forward(x))))));
  }

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr}, bn2_{nullptr};
};

class UNet : public torch::nn::Module {
 public:
  explicit UNet(const UNetOptions& options)
      : in_channels_(options.in_channels), multiple_(int64_t{1} << (options.channels.size() - 1)) {
    int64_t width = options.in_channels;
    for (const int64_t channels : options.channels) {
      const std::string name = "down" + std::to_string(down_.size());
      down_.push_back(register_module(name, std::make_shared<DoubleConv>(width, channels)));
      width = channels;
    }
    for (std::size_t level = options.channels.size() - 1; level-- > 0;) {
      const int64_t channels = options.channels[level];
      const auto up = torch::nn::ConvTranspose2dOptions(width, channels, 2).stride(2);
      enlarge_.push_back(register_module("enlarge" + std::to_string(level), torch::nn::ConvTranspose2d(up)));
      up_.push_back(
          register_module("up" + std::to_string(level), std::make_shared<DoubleConv>(2 * channels, channels)));
      width = channels;
    }
    head_ = register_module("head", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, options.num_classes, 1)));
  }

  at::Tensor forward(at::Tensor x) {
    if (x.dim() != 4 || x.size(1) != in_channels_ || x.size(2) % multiple_ != 0 || x.size(3) % multiple_ != 0) {
      throw duet::ConfigError(c10::str("[UNet] found 'image' of shape ", x.sizes(), ", expected [N, ", in_channels_,
                                       ", H, W] with H and W multiples of ", multiple_,
                                       "; set model.in_channels, or the size of the images"));
    }
    std::vector<at::Tensor> levels;
    for (const auto& down : down_) {
      if (!levels.empty()) x = at::max_pool2d(x, {2, 2});
      levels.push_back(x = down->forward(x));
    }
    for (std::size_t i = 0; i < up_.size(); ++i) {
      const at::Tensor& beside = levels[levels.size() - 2 - i];
      x = up_[i]->forward(at::cat({enlarge_[i]->forward(x), beside}, 1));
    }
    return head_->forward(x);
  }

 private:
  int64_t in_channels_, multiple_;
  std::vector<std::shared_ptr<DoubleConv>> down_, up_;
  std::vector<torch::nn::ConvTranspose2d> enlarge_;
  torch::nn::Conv2d head_{nullptr};
};

}  // namespace

std::unique_ptr<duet::Task> make_unet(const UNetOptions& options) {
  duet::check_options(options);
  constexpr int64_t kNoLabel = 255;  // in a mask: not to be learned and not counted
  return make_image_classifier(std::make_shared<UNet>(options), options, kNoLabel);
}
