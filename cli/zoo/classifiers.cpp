#include "cli/zoo/classifiers.h"
#include <string>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <c10/util/accumulate.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include "cli/zoo/model_input.h"
#include "core/task.h"

namespace duet {

const OptionFields& MlpOptions::fields() {
  using O = MlpOptions;
  return described<O>("Mlp", [](const auto& add) {
    add.about(
        "Linear layers with ReLU: reads image or input float32 or uint8 [N, ...], target int64 [N] (classes) or "
        "float32 [N] (mse, l1, huber, bce); predicts [N, num_classes].");
    add("in_features", &O::in_features, "values of one sample").in(kSizes);
    add("num_classes", &O::num_classes, "classes, the width of the output").in(kSizes);
    add("hidden", &O::hidden, "sizes of the hidden layers").in(kSizes);
    add("dropout", &O::dropout, "share of values that is dropped").in(up_to_below(0, 1));
    add_loss_options(add, [](auto member) { return [member](O& o) -> auto& { return o.loss.*member; }; });
  });
}

const OptionFields& SmallCnnOptions::fields() {
  using O = SmallCnnOptions;
  return described<O>("SmallCnn", [](const auto& add) {
    add.about(
        "Convolutions for small pictures: reads image float32 or uint8 [N, C, H, W], target int64 [N] (classes) or "
        "float32 [N] (mse, l1, huber, bce); predicts [N, num_classes].");
    add("num_classes", &O::num_classes, "classes, the width of the output").in(kSizes);
    add("in_channels", &O::in_channels, "channels of the images").in(kSizes);
    add("image_size", &O::image_size, "height and width of the images in pixels").in(kSizes);
    add("channels", &O::channels, "channels of the convolution blocks, each of which halves the image").in(kSizes);
    add("dropout", &O::dropout, "share of values that is dropped").in(up_to_below(0, 1));
    add_loss_options(add, [](auto member) { return [member](O& o) -> auto& { return o.loss.*member; }; });
    add.rule([](const O& o) {
      const auto blocks = o.channels.size();
      if (blocks != 0 && blocks <= 16 && o.image_size >> blocks != 0) return;
      throw ConfigError(c10::str("[SmallCnn] channels has ", blocks, " entries for images of ", o.image_size,
                                 " pixels, expected at least one, and an image that can be halved that often"));
    });
  });
}

namespace {

class Mlp : public torch::nn::Module {
 public:
  explicit Mlp(const MlpOptions& options) : in_features_(options.in_features) {
    int64_t width = options.in_features;
    for (const int64_t hidden : options.hidden) {
      hidden_.push_back(
          register_module("hidden" + std::to_string(hidden_.size() + 1), torch::nn::Linear(width, hidden)));
      width = hidden;
    }
    if (options.dropout > 0) dropout_ = register_module("dropout", torch::nn::Dropout(options.dropout));
    head_ = register_module("head", torch::nn::Linear(width, options.num_classes));
  }

  at::Tensor forward(at::Tensor x) {
    const int64_t values = x.dim() < 2 ? 0 : c10::multiply_integers(x.sizes().slice(1));
    if (values != in_features_) {
      throw ConfigError(c10::str("[Mlp] found an input of shape ", x.sizes(), ", expected [N, ...] with ", in_features_,
                                 " values per sample; ",
                                 values == 0 ? "give each sample a row of values" : "set model.in_features to ",
                                 values == 0 ? "" : std::to_string(values)));
    }
    x = x.flatten(1);
    for (torch::nn::Linear& layer : hidden_) {
      x = at::relu(layer->forward(x));
      if (dropout_) x = dropout_->forward(x);
    }
    return head_->forward(x);
  }

 private:
  int64_t in_features_;
  std::vector<torch::nn::Linear> hidden_;
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Linear head_{nullptr};
};

class SmallCnn : public torch::nn::Module {
 public:
  explicit SmallCnn(const SmallCnnOptions& options)
      : in_channels_(options.in_channels), image_size_(options.image_size) {
    int64_t width = options.in_channels;
    int64_t size = options.image_size;
    for (const int64_t channels : options.channels) {
      const std::string index = std::to_string(convolutions_.size() + 1);
      // Batch norm takes the mean away, and a bias with it.
      convolutions_.push_back(register_module(
          "conv" + index, torch::nn::Conv2d(torch::nn::Conv2dOptions(width, channels, 3).padding(1).bias(false))));
      norms_.push_back(register_module("norm" + index, torch::nn::BatchNorm2d(channels)));
      width = channels;
      size /= 2;
    }
    dropout_ = register_module("dropout", torch::nn::Dropout(options.dropout));
    head_ = register_module("head", torch::nn::Linear(width * size * size, options.num_classes));
  }

  at::Tensor forward(at::Tensor x) {
    if (x.dim() != 4 || x.size(1) != in_channels_ || x.size(2) != image_size_ || x.size(3) != image_size_) {
      throw ConfigError(c10::str("[SmallCnn] found 'image' of shape ", x.sizes(), ", expected [N, ", in_channels_, ", ",
                                 image_size_, ", ", image_size_, "]; set model.in_channels and model.image_size",
                                 kShapeWayOut));
    }
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      x = at::max_pool2d(at::relu(norms_[i]->forward(convolutions_[i]->forward(x))), {2, 2});
    }
    return head_->forward(dropout_->forward(x.flatten(1)));
  }

 private:
  int64_t in_channels_, image_size_;
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<torch::nn::BatchNorm2d> norms_;
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Linear head_{nullptr};
};

// The first of `names` that the batch has.
at::Tensor input_of(const Batch& batch, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (batch.has(name)) return model_input(batch, name);
  }
  return model_input(batch, names.front());
}

// A Task over a torch::nn::Module that reads the first of `names` in the batch and whose forward(input) gives logits
// [N, classes]: the loss against "target", and logits as "prediction" from that same forward. `options` are the
// model's.
template <class Module, class Options>
std::unique_ptr<Task> make_classifier(std::shared_ptr<Module> module, const Options& options,
                                      const std::vector<std::string>& names = {"image"}) {
  const auto forward = [names](Module& net, const Batch& batch) { return net.forward(input_of(batch, names)); };
  const auto loss = [options = options.loss](const at::Tensor& logits, const Batch& batch) {
    return loss_of(options, logits, batch["target"]);
  };
  const auto weight = [options = options.loss, classes = options.num_classes](const Batch& batch) {
    const at::Tensor& target = batch["target"];
    const bool is_classes = target.dim() == 1;  // else the model or the loss says what does not fit
    return loss_weight(options, target, {.classes = is_classes ? classes : 0, .sample_ids = batch.sample_ids()});
  };
  return make_task(module, forward, loss, weight);
}

}  // namespace

std::unique_ptr<Task> make_mlp(const MlpOptions& options) {
  check_options(options);
  return make_classifier(std::make_shared<Mlp>(options), options, {"image", "input"});
}

std::unique_ptr<Task> make_small_cnn(const SmallCnnOptions& options) {
  check_options(options);
  return make_classifier(std::make_shared<SmallCnn>(options), options);
}

}  // namespace duet
