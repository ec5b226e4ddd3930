#include "metrics/metric.h"
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string_view>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "metrics/detail/class_fields.h"

namespace duet {

const at::Tensor& metric_output(const std::string& who, const NamedTensors& outputs, const std::string& name) {
  std::string known;
  for (const auto& [key, tensor] : outputs) {
    if (key == name && tensor.defined()) return tensor;
    known += (known.empty() ? "" : ", ") + key;
  }
  throw DataError(c10::str(
      "[", who, "] found outputs ", known.empty() ? "none" : known, ", expected '", name,
      "' among them; return it from Task::validation_step, or give make_task a forward pass beside its loss (in Python "
      "forward=)"));
}

void check_class_numbers(const std::string& who, const std::string& target, double count, int64_t classes,
                         const std::string& rest) {
  if (count == 0) return;
  throw DataError(c10::str("[", who, "] found ", static_cast<int64_t>(count), " class numbers in '", target,
                           "' that do not exist, expected ", "0 to ",
                           classes > 0 ? std::to_string(classes - 1) : "classes - 1", rest));
}

std::vector<at::Tensor> Metric::sums(at::Device /*device*/) {
  throw ConfigError(
      "[Metric] found a metric without sums(), expected one that can be added up over ranks; override sums(), or "
      "evaluate in one process");
}

at::Tensor& SummedMetric::begin(at::Device device) {
  if (!sums_.defined()) sums_ = at::zeros(shape_, at::TensorOptions(type_).device(device));
  return sums_;
}

void MeanLoss::add(const Batch& /*batch*/, const NamedTensors& outputs, double weight) {
  const at::Tensor& loss = metric_output(who_, outputs, loss_);
  if (loss.numel() != 1 || !loss.is_floating_point()) {
    throw DataError(c10::str("[", who_, "] found '", loss_, "' ", loss.scalar_type(), " ", loss.sizes(),
                             ", expected one floating-point value; reduce it to its mean"));
  }
  if (!std::isfinite(weight) || weight < 0) {
    throw DataError(c10::str("[", who_, "] found weight ", weight, ", expected 0 or more; correct Task::weight"));
  }
  // The sums are changed in place, which tensors made in inference mode do not allow later on.
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  at::Tensor& sums = begin(loss.device());
  if (weight == 0) return;
  sums[0].add_(loss.detach().reshape({}).to(at::kDouble), weight);
  sums[1].add_(weight);
}

std::optional<double> MeanLoss::mean() const {
  if (!started()) return std::nullopt;
  const at::Tensor both = read();
  const double* values = both.const_data_ptr<double>();
  if (values[1] == 0) return std::nullopt;
  return values[0] / values[1];
}

MetricValues MeanLoss::compute() const {
  const std::optional<double> value = mean();
  if (!value) return {};
  return {{"loss", *value}};
}

const OptionFields& PerplexityOptions::fields() {
  using O = PerplexityOptions;
  return described<O>("Perplexity", [](const auto& add) {
    add("loss", &O::loss, "the output that holds the mean negative log-likelihood");
  });
}

MetricValues Perplexity::compute() const {
  if (!started()) return {};
  return {{"perplexity", std::exp(mean().value_or(std::nan("")))}};
}

namespace {

// mmengine's keys, found anywhere in a name, and those of our own metrics.
constexpr std::array<std::string_view, 16> kGreater = {"acc",  "top",    "ar@",    "auc",  "auroc", "precision",
                                                       "map",  "mdice",  "miou",   "macc", "aacc",  "iou",
                                                       "dice", "fscore", "recall", "f1"};
constexpr std::array<std::string_view, 3> kLess = {"loss", "error", "perplexity"};
// Too short to be looked for inside of words.
constexpr std::array<std::string_view, 5> kGreaterWords = {"r2", "psnr", "ssim", "bleu", "ap"};
constexpr std::array<std::string_view, 11> kLessWords = {"losses", "err", "mae", "mse",   "rmse", "mape",
                                                         "nll",    "ppl", "wer", "brier", "fid"};

enum class Rule { kUnknown, kGreater, kLess, kBoth };

Rule rule_of(bool greater, bool less) {
  if (greater && less) return Rule::kBoth;
  return greater ? Rule::kGreater : less ? Rule::kLess : Rule::kUnknown;
}

// Whole words first: "mape" is no mAP, "top1_error" no accuracy.
Rule infer(const std::string& name) {
  std::string words = " " + name + " ";
  std::ranges::replace_if(words, [](unsigned char c) { return std::isalnum(c) == 0 && c != '@'; }, ' ');
  const auto is_word = [&](std::string_view key) { return words.find(" " + std::string(key) + " ") != words.npos; };
  const auto is_part = [&](std::string_view key) { return name.find(key) != name.npos; };
  const Rule by_words = rule_of(std::ranges::any_of(kGreater, is_word) || std::ranges::any_of(kGreaterWords, is_word),
                                std::ranges::any_of(kLess, is_word) || std::ranges::any_of(kLessWords, is_word));
  if (by_words != Rule::kUnknown) return by_words;
  return rule_of(std::ranges::any_of(kGreater, is_part), std::ranges::any_of(kLess, is_part));
}

Rule infer_from_path(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const Rule last = infer(name.substr(name.rfind('/') + 1));
  return last != Rule::kUnknown ? last : infer(name);
}

}  // namespace

bool less_is_better(const std::string& who, const std::string& metric, const std::string& rule) {
  if (rule == "less" || rule == "greater") return rule == "less";
  if (!rule.empty()) {
    throw ConfigError("[" + who + "] found rule '" + rule +
                      "', expected 'greater' or 'less'; leave it out to decide by the metric's name");
  }
  const Rule inferred = infer_from_path(metric);
  if (inferred == Rule::kLess || inferred == Rule::kGreater) return inferred == Rule::kLess;
  throw ConfigError("[" + who + "] found metric '" + metric + "', whose name says " +
                    (inferred == Rule::kBoth ? "both that more and that less of it is better" : "not what is better") +
                    ", expected a name like accuracy, mIoU or loss; set rule to greater or less");
}

}  // namespace duet
