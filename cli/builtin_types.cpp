#include "cli/builtin_types.h"
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "cli/zoo/classifiers.h"
#include "cli/zoo/encoder_decoder.h"
#include "cli/zoo/gpt.h"
#include "core/model_file.h"
#include "core/task.h"
#include "data/dataset.h"
#include "metrics/class_metric.h"
#include "metrics/metric.h"
#include "metrics/probability_metric.h"
#include "metrics/regression_metric.h"
#include "optim/groups/param_group.h"

namespace duet {

// Where config keys become the options of the built-in models and metrics. The options check their own ranges; their
// errors are shown with the place of the node.

namespace {

// Whether labels are places in a list of names, and no numbers themselves.
bool are_places(const std::vector<std::string>& classes) {
  for (std::size_t i = 0; i < classes.size(); ++i) {
    if (classes[i] != std::to_string(i)) return true;
  }
  return false;
}

// One number per sample would be fitted to the places of classes in their list, which mean nothing. (Two names are 0
// and 1 of bce.)
void check_numbers(const ConfigNode& node, const LossOptions& options, const Dataset& data) {
  const std::vector<std::string> classes = data.class_names();
  if (options.loss == "bce" || !are_places(classes)) return;
  node.fail("loss", "is " + options.loss + ", of numbers, but the targets of data.train are classes such as '" +
                        classes.front() + "'; set loss: cross_entropy, or at the data task: regression");
}

// What every classifier checks once its keys are read. A label without an output would end the training in its middle,
// on a GPU without naming the cause.
template <Described Options>
Options classifier_options(const ConfigNode& node, const ModelContext& context, const char* background = "") {
  const auto options = read_all_options<Options>(node);
  const std::string& loss = options.loss.loss;
  if (loss != "cross_entropy" && loss != "focal" && loss != "dice") {  // numbers, not classes
    if (options.num_classes == 1 && context.train_data != nullptr)
      check_numbers(node, options.loss, *context.train_data);
    return options;
  }
  if (options.num_classes == 1) {
    const bool is_segmentation = *background != 0;
    const std::string more =
        is_segmentation ? background : "; for one logit of two classes set loss: bce, for a number mse";
    node.fail("num_classes", "is 1, of which the loss " + loss + " learns nothing, expected at least 2" + more);
  }
  const int64_t max_label = context.train_data == nullptr ? -1 : context.train_data->max_label();
  if (max_label < options.num_classes) return options;
  const std::vector<std::string> names = context.train_data->class_names();
  node.fail("num_classes",
            c10::str("is ", options.num_classes, ", but data.train has labels up to ", max_label, background,
                     names.empty() ? "" : " (" + join_first(names, 20) + ")", "; set at least ", max_label + 1));
}

template <Described Options>
void add_classifier(const char* name, std::unique_ptr<Task> (*make)(const Options&), const char* background = "") {
  register_model(
      name,
      [=](ConfigNode& node, ModelContext& context) {
        return make(classifier_options<Options>(node, context, background));
      },
      AnyOptions(Options()));
}

// A language model with as many tokens as the training text has characters, unless the config says.
std::unique_ptr<Task> gpt(ConfigNode& node, ModelContext& context) {
  auto options = read_options<GptOptions>(node);
  node.reject_unknown();
  const auto* text =
      context.train_data == nullptr ? nullptr : dynamic_cast<const TextDataset*>(&context.train_data->source());
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

std::unique_ptr<Task> exported(ConfigNode& node, ModelContext&) {
  return make_exported_task(read_all_options<ExportedTaskOptions>(node));
}

template <class M, Described Options>
void add_metric(const char* name) {
  register_metric(
      name, [](ConfigNode& node) { return std::make_unique<M>(read_all_options<Options>(node)); },
      AnyOptions(Options()));
}

}  // namespace

void add_builtin_types() {
  const char* const background = " (0 is the background)";
  add_classifier("SmallCnn", make_small_cnn);
  add_classifier("Mlp", make_mlp);
  add_classifier("EncoderDecoder", make_encoder_decoder, background);
  register_model("Gpt", gpt, AnyOptions(GptOptions()));
  register_model("torchscript", torchscript, AnyOptions(ScriptTaskOptions()));
  register_model("exported", exported, AnyOptions(ExportedTaskOptions()));
  add_builtin_data();
  add_metric<MeanSquaredError, RegressionOptions>("MeanSquaredError");
  add_metric<MeanAbsoluteError, RegressionOptions>("MeanAbsoluteError");
  add_metric<R2Score, RegressionOptions>("R2Score");
  add_metric<Auroc, RankingOptions>("Auroc");
  add_metric<AveragePrecision, RankingOptions>("AveragePrecision");
  add_metric<CalibrationError, CalibrationErrorOptions>("CalibrationError");
  add_metric<Accuracy, AccuracyOptions>("Accuracy");
  add_metric<IoUMetric, IoUMetricOptions>("IoUMetric");
  add_metric<F1, F1Options>("F1");
  add_metric<ConfusionMatrix, ConfusionMatrixOptions>("ConfusionMatrix");
  add_metric<Perplexity, PerplexityOptions>("Perplexity");
  register_metric("MeanLoss", [](ConfigNode&) { return std::make_unique<MeanLoss>(); });
  register_optim_wrapper_constructor("DefaultOptimWrapperConstructor", paramwise_constructor,
                                     AnyOptions(ParamwiseOptions()));
  register_optim_wrapper_constructor("LearningRateDecayOptimizerConstructor", layer_decay_constructor,
                                     AnyOptions(LayerDecayOptions()));
  add_builtin_hooks();
}

}  // namespace duet
