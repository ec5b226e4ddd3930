#include "cli/zoo/mlp.h"
#include <ATen/ops/relu.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include "cli/zoo/classifier.h"
#include "cli/zoo/model_options.h"

namespace duet {

const OptionFields& MlpOptions::fields() {
  using O = MlpOptions;
  static const OptionFields kFields = OptionFields::of<O>("Mlp", [](const FieldAdder<O>& add) {
    add("in_features", &O::in_features, "values of one sample").in(kSizes);
    add("num_classes", &O::num_classes, "classes, the width of the output").in(kSizes);
    add("hidden", &O::hidden, "sizes of the hidden layers").in(kSizes);
    add("dropout", &O::dropout, "share of values that is dropped").in(up_to_below(0, 1));
  });
  return kFields;
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
    const at::Tensor image = x;
    x = x.flatten(1);
    if (x.size(1) != in_features_) {
      throw ConfigError(c10::str("[Mlp] found 'image' of shape ", image.sizes(), ", expected ", in_features_,
                                 " values per sample; set model.in_features to ", x.size(1)));
    }
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

}  // namespace

std::unique_ptr<Task> make_mlp(const MlpOptions& options) {
  options.validate();
  return make_classifier(std::make_shared<Mlp>(options));
}

}  // namespace duet
