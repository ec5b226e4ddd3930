#include <c10/util/StringUtil.h>
#include "cli/config/hook_config.h"
#include "cli/config/metric_config.h"
#include "cli/zoo/gpt.h"
#include "cli/zoo/mlp.h"
#include "cli/zoo/small_cnn.h"
#include "cli/registry.h"
#include "cli/zoo/segmentation_types.h"
#include "cli/zoo/fashion_mnist.h"
#include "data/tensor_dataset.h"
#include "data/text_dataset.h"
#include "core/hook.h"
#include "core/script_task.h"
#include "core/task.h"

namespace duet {

// Where config keys become the options of the built-in models and datasets. The options check their own ranges; their
// errors are shown with the place of the node.

namespace {

// What every classifier checks once its keys are read. A label without an output would end the training in its middle,
// on a GPU without naming the cause.
template <class Options>
void check_classifier(const ConfigNode& node, const Options& options, const ModelContext& context) {
  node.reject_unknown();
  options.validate();
  const auto* images = dynamic_cast<const FashionMnist*>(context.train_data);
  if (images == nullptr || images->max_label() < options.num_classes) return;
  node.fail("num_classes", c10::str("is ", options.num_classes, ", but data.train has labels up to ",
                                    images->max_label(), "; set at least ", images->max_label() + 1));
}

std::unique_ptr<Task> small_cnn(ConfigNode& node, ModelContext& context) {
  SmallCnnOptions options;
  options.num_classes = node.read<int64_t>("num_classes", options.num_classes);
  options.in_channels = node.read<int64_t>("in_channels", options.in_channels);
  options.image_size = node.read<int64_t>("image_size", options.image_size);
  options.channels = node.read<std::vector<int64_t>>("channels", options.channels);
  options.dropout = node.read<double>("dropout", options.dropout);
  check_classifier(node, options, context);
  return make_small_cnn(options);
}

std::unique_ptr<Task> mlp(ConfigNode& node, ModelContext& context) {
  MlpOptions options;
  options.in_features = node.read<int64_t>("in_features", options.in_features);
  options.num_classes = node.read<int64_t>("num_classes", options.num_classes);
  options.hidden = node.read<std::vector<int64_t>>("hidden", options.hidden);
  options.dropout = node.read<double>("dropout", options.dropout);
  check_classifier(node, options, context);
  return make_mlp(options);
}

std::unique_ptr<Task> gpt(ConfigNode& node, ModelContext& context) {
  GptOptions options;
  options.vocab_size = node.read<int64_t>("vocab_size", options.vocab_size);
  options.n_layer = node.read<int64_t>("n_layer", options.n_layer);
  options.n_head = node.read<int64_t>("n_head", options.n_head);
  options.n_embd = node.read<int64_t>("n_embd", options.n_embd);
  options.context = node.read<int64_t>("context", options.context);
  options.dropout = node.read<double>("dropout", options.dropout);
  node.reject_unknown();
  const auto* text = dynamic_cast<const TextDataset*>(context.train_data);
  if (options.vocab_size == 0) {
    if (text == nullptr) {
      node.fail("vocab_size",
                "is 0, which asks the training data, expected data.train of type Text; set the size here");
    }
    options.vocab_size = text->vocab_size();
  }
  if (text != nullptr && options.vocab_size < text->vocab_size()) {
    node.fail("vocab_size", c10::str("is ", options.vocab_size, ", but the text of data.train has ", text->vocab_size(),
                                     " characters; remove the key to take their number"));
  }
  return make_gpt(options);
}

std::unique_ptr<Task> torchscript(ConfigNode& node, ModelContext&) {
  ScriptTaskOptions options;
  options.path = node.need<std::string>("path");
  options.inputs = node.read<std::vector<std::string>>("inputs", options.inputs);
  options.target = node.read<std::string>("target", options.target);
  options.loss = node.read_choice("loss", options.loss, {"cross_entropy", "mse", "none"});
  node.reject_unknown();
  return make_script_task(options);
}

std::shared_ptr<const Dataset> fashion_mnist(ConfigNode& node) {
  FashionMnistOptions options;
  options.root = node.read<std::string>("root", options.root);
  options.split = node.read_choice("split", options.split, {"train", "test"});
  options.images = node.read<std::string>("images", options.images);
  options.labels = node.read<std::string>("labels", options.labels);
  options.normalize = node.read<bool>("normalize", options.normalize);
  options.mean = node.read<double>("mean", options.mean);
  options.std = node.read<double>("std", options.std);
  options.num_classes = node.read<int64_t>("num_classes", options.num_classes);
  options.limit = node.read<int64_t>("limit", options.limit);
  node.reject_unknown();
  return std::make_shared<FashionMnist>(options);
}

std::shared_ptr<const Dataset> text(ConfigNode& node) {
  TextDatasetOptions options;
  options.path = node.read<std::string>("path", options.path);
  options.split = node.read_choice("split", options.split, {"train", "val", "all"});
  options.val_fraction = node.read<double>("val_fraction", options.val_fraction);
  options.context = node.read<int64_t>("context", options.context);
  options.stride = node.read<int64_t>("stride", options.stride);
  node.reject_unknown();
  return std::make_shared<TextDataset>(options);
}

std::shared_ptr<const Dataset> safetensors(ConfigNode& node) {
  const std::string path = node.need<std::string>("path");
  node.reject_unknown();
  return std::make_shared<TensorDataset>(TensorDataset::from_file(path));
}

}  // namespace

void register_builtin_types() {
  static bool done = false;
  if (done) return;
  done = true;
  register_model("SmallCnn", small_cnn);
  register_model("Mlp", mlp);
  register_model("Gpt", gpt);
  register_model("EncoderDecoder", [](ConfigNode& node, ModelContext& context) { return make_encoder_decoder(node, context); });
  register_model("torchscript", torchscript);
  register_dataset("FashionMnist", fashion_mnist);
  register_dataset("FashionScenes", make_fashion_scenes);
  register_dataset("Text", text);
  register_dataset("Safetensors", safetensors);
  register_builtin_hooks();
  register_builtin_metrics();
}

}  // namespace duet
