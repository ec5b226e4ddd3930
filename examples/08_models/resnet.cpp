#include "resnet.h"
#include <duet/duet.h>
#include <torch/torch.h>
#include "classifier.h"

const duet::OptionFields& ResNetOptions::fields() {
  using O = ResNetOptions;
  return duet::described<O>("ResNet", [](const auto& add) {
    add.about(
        "A ResNet of basic blocks: reads image float32 or uint8 [N, C, H, W], target int64 [N] (classes) or float32 "
        "[N] "
        "(mse, l1, huber, bce); predicts [N, num_classes].");
    add("num_classes", &O::num_classes, "classes, the width of the output").in(duet::between(1, 1 << 30));
    add("in_channels", &O::in_channels, "channels of the images").in(duet::between(1, 1 << 30));
    add("depths", &O::depths, "blocks of each stage; [2, 2, 2, 2]: ResNet-18, [3, 4, 6, 3]: ResNet-34")
        .in(duet::between(1, 1 << 30));
    add("width", &O::width, "channels of the first stage; each further one has twice as many")
        .in(duet::between(1, 1 << 30));
    add("stem", &O::stem, "imagenet: 7x7 of stride 2 and a max pool; small: 3x3, for small pictures")
        .one_of({"imagenet", "small"});
    duet::add_loss_options(add, [](auto member) { return [member](O& o) -> auto& { return o.loss.*member; }; });
    add.rule([](const O& o) {
      if (!o.depths.empty() && o.depths.size() <= 8) return;
      throw duet::ConfigError(c10::str("[ResNet] depths has ", o.depths.size(), " stages, expected 1 to 8"));
    });
  });
}

namespace {

torch::nn::Conv2d plain_conv(int64_t from, int64_t to, int64_t size, int64_t stride) {
  auto options = torch::nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false);
  torch::nn::Conv2d conv(options);
  torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  return conv;
}

class BasicBlock : public torch::nn::Module {
 public:
  BasicBlock(int64_t from, int64_t to, int64_t stride) {
    conv1_ = register_module("conv1", plain_conv(from, to, 3, stride));
    bn1_ = register_module("bn1", torch::nn::BatchNorm2d(to));
    conv2_ = register_module("conv2", plain_conv(to, to, 3, 1));
    bn2_ = register_module("bn2", torch::nn::BatchNorm2d(to));
    if (from == to && stride == 1) return;
    downsample_ = register_module("downsample",
                                  torch::nn::Sequential(plain_conv(from, to, 1, stride), torch::nn::BatchNorm2d(to)));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor branch = bn2_->forward(conv2_->forward(at::relu(bn1_->forward(conv1_->forward(x)))));
    return at::relu(branch + (downsample_ ? downsample_->forward(x) : x));
  }

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr}, bn2_{nullptr};
  torch::nn::Sequential downsample_{nullptr};
};

class ResNet : public torch::nn::Module {
 public:
  explicit ResNet(const ResNetOptions& options)
      : in_channels_(options.in_channels), has_pool_(options.stem == "imagenet") {
    conv1_ =
        register_module("conv1", plain_conv(options.in_channels, options.width, has_pool_ ? 7 : 3, has_pool_ ? 2 : 1));
    bn1_ = register_module("bn1", torch::nn::BatchNorm2d(options.width));
    int64_t width = options.width;
    for (std::size_t stage = 0; stage < options.depths.size(); ++stage) {
      torch::nn::Sequential blocks;
      const int64_t to = stage == 0 ? width : 2 * width;
      for (int64_t block = 0; block < options.depths[stage]; ++block) {
        blocks->push_back(BasicBlock(block == 0 ? width : to, to, stage > 0 && block == 0 ? 2 : 1));
      }
      stages_.push_back(register_module("layer" + std::to_string(stage + 1), blocks));
      width = to;
    }
    fc_ = register_module("fc", torch::nn::Linear(width, options.num_classes));
  }

  at::Tensor forward(at::Tensor x) {
    if (x.dim() != 4 || x.size(1) != in_channels_) {
      throw duet::ConfigError(c10::str("[ResNet] found 'image' of shape ", x.sizes(), ", expected [N, ", in_channels_,
                                       ", H, W]", "; set model.in_channels"));
    }
    x = at::relu(bn1_->forward(conv1_->forward(x)));
    if (has_pool_) x = at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1});
    for (torch::nn::Sequential& stage : stages_) x = stage->forward(x);
    return fc_->forward(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

 private:
  int64_t in_channels_;
  bool has_pool_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::vector<torch::nn::Sequential> stages_;
  torch::nn::Linear fc_{nullptr};
};

}  // namespace

std::unique_ptr<duet::Task> make_resnet(const ResNetOptions& options) {
  duet::check_options(options);
  return make_image_classifier(std::make_shared<ResNet>(options), options);
}
