#include <c10/util/StringUtil.h>
#include "cli/config/config_options.h"
#include "cli/config/hook_config.h"
#include "cli/config/metric_config.h"
#include "cli/registry.h"
#include "cli/zoo/encoder_decoder.h"
#include "cli/zoo/fashion_mnist.h"
#include "cli/zoo/fashion_scenes.h"
#include "cli/zoo/gpt.h"
#include "cli/zoo/mlp.h"
#include "cli/zoo/small_cnn.h"
#include "core/hook.h"
#include "core/script_task.h"
#include "core/task.h"
#include "data/dataset.h"

namespace duet {

// Where config keys become the options of the built-in models and datasets. The options check their own ranges; their
// errors are shown with the place of the node.

namespace {

// What every classifier checks once its keys are read. A label without an output would end the training in its middle,
// on a GPU without naming the cause.
template <Described Options, class Images>
Options classifier_options(const ConfigNode& node, const ModelContext& context, const char* background = "") {
  const auto options = read_all_options<Options>(node);
  const auto* images = dynamic_cast<const Images*>(context.train_data);
  if (images == nullptr || images->max_label() < options.num_classes) return options;
  node.fail("num_classes", c10::str("is ", options.num_classes, ", but data.train has labels up to ",
                                    images->max_label(), background, "; set at least ", images->max_label() + 1));
}

std::unique_ptr<Task> small_cnn(ConfigNode& node, ModelContext& context) {
  return make_small_cnn(classifier_options<SmallCnnOptions, FashionMnist>(node, context));
}

std::unique_ptr<Task> mlp(ConfigNode& node, ModelContext& context) {
  return make_mlp(classifier_options<MlpOptions, FashionMnist>(node, context));
}

std::unique_ptr<Task> encoder_decoder(ConfigNode& node, ModelContext& context) {
  return make_encoder_decoder(
      classifier_options<EncoderDecoderOptions, FashionScenes>(node, context, " (0 is the background)"));
}

std::unique_ptr<Task> gpt(ConfigNode& node, ModelContext& context) {
  GptOptions options;  // 0 is no size of a vocabulary, but may stand in a config
  read_fields(node, GptOptions::fields(), &options, Ranges::kLeftToCaller);
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
  return make_script_task(read_all_options<ScriptTaskOptions>(node));
}

template <class D, Described Options>
std::shared_ptr<const Dataset> dataset(ConfigNode& node) {
  return std::make_shared<D>(read_all_options<Options>(node));
}

struct SafetensorsOptions {
  std::string path;
  static const OptionFields& fields() {
    static const OptionFields kFields =
        OptionFields::of<SafetensorsOptions>("Safetensors", [](const FieldAdder<SafetensorsOptions>& add) {
          add("path", &SafetensorsOptions::path, "a safetensors file whose tensors have the samples as first dimension")
              .needed();
        });
    return kFields;
  }
};

std::shared_ptr<const Dataset> safetensors(ConfigNode& node) {
  return std::make_shared<TensorDataset>(TensorDataset::from_file(read_all_options<SafetensorsOptions>(node).path));
}

}  // namespace

void register_builtin_types() {
  static bool done = false;
  if (done) return;
  done = true;
  register_model("SmallCnn", small_cnn, AnyOptions(SmallCnnOptions()));
  register_model("Mlp", mlp, AnyOptions(MlpOptions()));
  register_model("Gpt", gpt, AnyOptions(GptOptions()));
  register_model("EncoderDecoder", encoder_decoder, AnyOptions(EncoderDecoderOptions()));
  register_model("torchscript", torchscript, AnyOptions(ScriptTaskOptions()));
  register_dataset("FashionMnist", dataset<FashionMnist, FashionMnistOptions>, AnyOptions(FashionMnistOptions()));
  register_dataset("FashionScenes", dataset<FashionScenes, FashionScenesOptions>, AnyOptions(FashionScenesOptions()));
  register_dataset("Text", dataset<TextDataset, TextDatasetOptions>, AnyOptions(TextDatasetOptions()));
  register_dataset("Safetensors", safetensors, AnyOptions(SafetensorsOptions()));
  register_builtin_hooks();
  register_builtin_metrics();
}

}  // namespace duet
