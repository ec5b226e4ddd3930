#include "core/losses.h"
#include <algorithm>
#include <numeric>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>
#include "base/error.h"
#include "core/task.h"

namespace duet {

namespace {

bool is_of_classes(const LossOptions& options) {
  return options.loss == "cross_entropy" || options.loss == "focal" || options.loss == "dice";
}

bool takes_shares(const LossOptions& options) { return options.loss == "cross_entropy" || options.loss == "focal"; }

template <class... Parts>
[[noreturn]] void refuse(const LossOptions& options, const at::Tensor& target, const Parts&... parts) {
  throw ConfigError(
      c10::str("[Loss] ", options.loss, " got 'target' ", target.scalar_type(), target.sizes(), parts...));
}

at::Tensor shaped_like(const LossOptions& options, const at::Tensor& target, const at::Tensor& prediction) {
  const bool same_samples = target.dim() > 0 && prediction.dim() > 0 && target.size(0) == prediction.size(0);
  if (target.numel() != prediction.numel() || (target.dim() > 0 && !same_samples)) {
    refuse(options, target, " for a prediction ", prediction.sizes(), ", expected as many values; set the model's ",
           "num_classes to ", target.numel() / std::max<int64_t>(1, target.dim() > 0 ? target.size(0) : 1));
  }
  return target.to(prediction.scalar_type()).reshape(prediction.sizes());
}

void check_labels(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target) {
  std::vector<int64_t> wanted = logits.sizes().vec();
  if (wanted.size() >= 2) wanted.erase(wanted.begin() + 1);
  const bool of_pixels = options.loss == "dice";
  const bool has_classes = logits.dim() >= (of_pixels ? 3 : 2);
  if (has_classes && target.scalar_type() == at::kLong && target.sizes() == at::IntArrayRef(wanted)) return;
  const bool is_long = target.scalar_type() == at::kLong;
  refuse(options, target, " for logits ", logits.sizes(), ", expected int64 classes ",
         of_pixels ? "[N, H, W] for logits [N, C, H, W]" : "[N, ...] for logits [N, C, ...]",
         is_long && target.numel() == c10::multiply_integers(wanted) ? "; reshape it, as [N, 1] to [N]"
         : !is_long ? "; set task: classification at a Csv, cast: {target: int64} at data that number classes from 0"
         : takes_shares(options) ? "; set cast: {target: float32} at one-hot rows"
                                 : "; give each sample one class",
         ", or model.loss to bce for several classes per sample, to mse, l1 or huber for numbers");
}

// Targets on the CPU.

// What is no distribution over the classes, or no probability, has a loss too, which means nothing.
void check_shares(const LossOptions& options, const at::Tensor& target) {
  constexpr double kTolerance = 1e-3;
  const bool of_classes = takes_shares(options);
  if (target.numel() == 0 || (of_classes && (target.dim() < 2 || target.size(1) == 1))) return;
  const at::Tensor wanted = target.to(at::kDouble), sums = of_classes ? wanted.sum(1) : at::ones({1}, at::kDouble);
  const double least = wanted.min().item<double>(), greatest = wanted.max().item<double>();
  const double least_sum = sums.min().item<double>(), greatest_sum = sums.max().item<double>();
  const bool adds_up = least_sum >= 1 - kTolerance && greatest_sum <= 1 + kTolerance;
  if (least >= 0 && adds_up && (of_classes || greatest <= 1)) return;
  refuse(options, target, " with numbers from ", least, " to ", greatest,
         of_classes ? c10::str(" in rows that add up to ", least_sum, " to ", greatest_sum) : "", ", expected 0 to 1",
         of_classes ? " and rows that add up to 1; set model.loss to bce for several classes per "
                      "sample, or to mse, l1 or huber for numbers"
                    : "; set model.loss to mse, l1 or huber for other numbers");
}

// ATen's own error names the label alone, and on a GPU it costs the process its device.
void check_range(const std::string& loss, const at::Tensor& target, const LabelInfo& info) {
  if (info.classes == 0 || target.scalar_type() != at::kLong || target.dim() == 0) return;
  const at::Tensor labels = target.contiguous();
  const int64_t* const values = labels.const_data_ptr<int64_t>();
  const auto is_bad = [&](int64_t label) { return (label < 0 || label >= info.classes) && label != info.ignored; };
  bool some_bad = false;
  for (int64_t i = 0; i < labels.numel(); ++i) some_bad |= is_bad(values[i]);
  if (!some_bad) return;
  const int64_t bad = std::find_if(values, values + labels.numel(), is_bad) - values;
  const auto row = static_cast<std::size_t>(bad / std::max<int64_t>(1, labels.numel() / labels.size(0)));
  const bool is_known = row < info.sample_ids.size();
  throw DataError(c10::str("[Loss] ", loss, " got class ", values[bad], " in 'target' of ",
                           is_known ? c10::str("sample ", info.sample_ids[row]) : c10::str("row ", row),
                           ", expected 0 to ", info.classes - 1, "; correct the labels, which count from 0",
                           values[bad] < 0 ? "" : c10::str(", or set model.num_classes to ", values[bad] + 1)));
}

void check_targets(const LossOptions& options, const at::Tensor& target, const LabelInfo& info) {
  if (options.loss == "bce" || (takes_shares(options) && target.is_floating_point())) check_shares(options, target);
  if (is_of_classes(options)) check_range(options.loss, target, info);
}

// Undefined: all 1. Not of half precision, in which sums of theirs would overflow.
at::Tensor weights_of_classes(const LossOptions& options, const at::Tensor& logits) {
  if (options.class_weights.empty()) return {};
  const at::ScalarType type = c10::promoteTypes(logits.scalar_type(), at::kFloat);
  const at::Tensor weights = at::tensor(options.class_weights, logits.options().dtype(type).requires_grad(false));
  if (weights.numel() != logits.size(1)) {
    throw ConfigError(c10::str("[Loss] class_weights has ", weights.numel(), " numbers, expected ", logits.size(1),
                               ", one for each class"));
  }
  return weights;
}

// What the labels that count weigh. A batch in which none does then has the loss 0.
at::Tensor weight_of_labels(const at::Tensor& target, const at::Tensor& class_weights, int64_t ignored) {
  const at::Tensor counts = target.ne(ignored);
  if (!class_weights.defined()) return counts.sum().clamp_min(1);
  const at::Tensor sum = (class_weights.take(target.masked_fill(counts.logical_not(), 0)) * counts).sum();
  return sum + sum.eq(0);
}

at::Tensor focused(const at::Tensor& cross_entropy, double gamma) {
  return (1 - (-cross_entropy).exp()).pow(gamma) * cross_entropy;
}

// Of classes that a sample has a share of, each as if it were the label.
at::Tensor focal_of_shares(const at::Tensor& logits, const at::Tensor& shares, double gamma) {
  return (shares * focused(-at::log_softmax(logits, 1), gamma)).sum(1).mean();
}

// A coefficient of the whole batch would be another loss with each way to cut it into micro-batches and ranks.
at::Tensor dice_loss(const at::Tensor& logits, const at::Tensor& target, int64_t ignored) {
  const at::Tensor counts = target.ne(ignored).unsqueeze(1);
  const at::Tensor labels = target.unsqueeze(1).masked_fill(counts.logical_not(), 0);
  const at::Tensor share = at::softmax(logits, 1) * counts;
  const at::Tensor is_class = at::zeros_like(share).scatter(1, labels, 1.0) * counts;
  std::vector<int64_t> pixels(static_cast<std::size_t>(logits.dim() - 2));
  std::iota(pixels.begin(), pixels.end(), 2);
  const at::Tensor both = (share * is_class).sum(pixels), all = share.sum(pixels) + is_class.sum(pixels);
  const at::Tensor of_image = 1 - ((2 * both + 1) / (all + 1)).mean(1);
  const at::Tensor labels_in_image = counts.flatten(1).sum(1);
  return (of_image * labels_in_image).sum() / labels_in_image.sum().clamp_min(1);
}

at::Tensor class_loss(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target, int64_t ignored) {
  const bool is_plain = options.loss == "cross_entropy", has_shape_of_shares = target.sizes() == logits.sizes();
  const bool is_shares = takes_shares(options) && target.is_floating_point() && target.dim() > 1 && has_shape_of_shares;
  if (!is_shares) check_labels(options, logits, target);
  if (options.loss == "dice") return dice_loss(logits, target, ignored);
  if (is_shares && !is_plain) return focal_of_shares(logits, target, options.focal_gamma);
  const at::Tensor weights = weights_of_classes(options, logits);
  const auto cross_entropy = [&](int64_t reduction) {
    const at::Tensor exact = weights.defined() ? logits.to(weights.scalar_type()) : logits;
    return at::cross_entropy_loss(exact, target, weights, reduction, ignored, options.label_smoothing);
  };
  const bool is_smoothed = options.label_smoothing > 0;
  if (is_shares || (is_plain && logits.dim() == 2 && !is_smoothed)) return cross_entropy(at::Reduction::Mean);
  // Summed here: the sum that the op takes over an image differs from run to run on a GPU, and its smoothed mean
  // selects labels, which no graph can hold. What does not count is 0.
  const at::Tensor each = cross_entropy(at::Reduction::None);
  return (is_plain ? each : focused(each, options.focal_gamma)).sum() / weight_of_labels(target, weights, ignored);
}

// Labels on the CPU.
double sum_of_weights(const LossOptions& options, const at::Tensor& target, int64_t ignored) {
  double sum = 0;
  const at::Tensor labels = target.contiguous();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    const int64_t label = labels.const_data_ptr<int64_t>()[i];
    if (label == ignored) continue;
    const bool is_known = label >= 0 && label < std::ssize(options.class_weights);
    sum += is_known ? options.class_weights[static_cast<std::size_t>(label)] : 1;
  }
  return sum;
}

}  // namespace

void check_loss(const LossOptions& options) {
  if (options.loss == "cross_entropy" || (options.label_smoothing == 0 && options.class_weights.empty())) return;
  throw ConfigError("[Loss] label_smoothing and class_weights belong to loss: cross_entropy, found them with loss: " +
                    options.loss + "; remove them");
}

at::Tensor loss_of(const LossOptions& options, const at::Tensor& prediction, const at::Tensor& target,
                   int64_t ignored) {
  if (is_of_classes(options)) return class_loss(options, prediction, target, ignored);
  const std::string& name = options.loss;
  const bool is_known = name == "mse" || name == "l1" || name == "huber" || name == "bce";
  if (!is_known) {
    throw ConfigError("[Loss] loss is '" + name + "', expected cross_entropy, focal, dice, mse, l1, huber or bce");
  }
  const at::Tensor wanted = shaped_like(options, target, prediction);
  if (name == "mse") return at::mse_loss(prediction, wanted);
  if (name == "l1") return at::l1_loss(prediction, wanted);
  if (name == "huber") return at::huber_loss(prediction, wanted);
  return at::binary_cross_entropy_with_logits(prediction, wanted);
}

double loss_weight(const LossOptions& options, const at::Tensor& target, const LabelInfo& info) {
  check_targets(options, target, info);
  const bool is_shares = is_of_classes(options) && target.is_floating_point();
  if (is_shares) return static_cast<double>(target.dim() == 0 ? 1 : target.size(0));
  if (!is_of_classes(options)) return static_cast<double>(target.numel());
  const bool is_weighted = !options.class_weights.empty() && target.scalar_type() == at::kLong;
  return is_weighted ? sum_of_weights(options, target, info.ignored)
                     : static_cast<double>(counted_targets(target, info.ignored));
}

}  // namespace duet
