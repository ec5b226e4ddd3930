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
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/task.h"

namespace duet {

namespace {

bool is_of_classes(const LossOptions& options) {
  return options.loss == "cross_entropy" || options.loss == "focal" || options.loss == "dice";
}

// Targets of numbers.

at::Tensor shaped_like(const at::Tensor& target, const at::Tensor& prediction, const std::string& loss) {
  const bool same_samples = target.dim() > 0 && prediction.dim() > 0 && target.size(0) == prediction.size(0);
  if (target.numel() != prediction.numel() || (target.dim() > 0 && !same_samples)) {
    throw ConfigError(c10::str("[Loss] ", loss, " compares a prediction ", prediction.sizes(), " with 'target' ",
                               target.sizes(), ", expected as many values; set the model's num_classes to ",
                               target.numel() / std::max<int64_t>(1, target.dim() > 0 ? target.size(0) : 1)));
  }
  return target.to(prediction.scalar_type()).reshape(prediction.sizes());
}

void check_shares(const at::Tensor& target) {
  const at::Tensor wanted = target.to(at::kDouble);
  if (wanted.numel() == 0 || (wanted.min().item<double>() >= 0 && wanted.max().item<double>() <= 1)) return;
  throw ConfigError(c10::str("[Loss] bce got targets from ", wanted.min().item<double>(), " to ",
                             wanted.max().item<double>(),
                             ", expected 0 to 1; set model.loss to mse for other numbers"));
}

// Targets of classes.

bool takes_shares(const LossOptions& options) { return options.loss == "cross_entropy" || options.loss == "focal"; }

void check_classes(const std::string& loss, const at::Tensor& target) {
  if (target.scalar_type() == at::kLong) return;
  const std::string found = c10::str("[Loss] ", loss, " got 'target' ", target.scalar_type(), target.sizes());
  if (!target.is_floating_point()) {
    throw ConfigError(found + ", expected int64 classes; set cast: {target: int64} at the data");
  }
  throw ConfigError(found +
                    ", expected int64 classes; set task: classification at a Csv, which numbers the classes from 0, or "
                    "cast: {target: int64} at data that begins with class 0, or model.loss to mse, l1 or huber for "
                    "regression");
}

// Rows of a number for each class that are no shares.
void refuse_rows(const LossOptions& options, const at::Tensor& target) {
  throw ConfigError(c10::str("[Loss] ", options.loss, " got 'target' ", target.scalar_type(), target.sizes(),
                             ", a number for each class, expected int64 classes; ",
                             takes_shares(options) ? "set cast: {target: float32} at the data for one-hot rows, or "
                                                     "model.loss to bce for several classes per sample"
                                                   : "take the argmax over the classes, or another model.loss"));
}

void check_labels(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target) {
  if (target.dim() > 1 && target.sizes() == logits.sizes()) refuse_rows(options, target);
  check_classes(options.loss, target);
  std::vector<int64_t> wanted = logits.sizes().vec();
  if (wanted.size() >= 2) wanted.erase(wanted.begin() + 1);
  const std::size_t fewest = options.loss == "dice" ? 3 : 2;
  if (logits.sizes().size() >= fewest && target.sizes() == at::IntArrayRef(wanted)) return;
  const bool has_empty_dimension =
      target.dim() > 1 && target.size(1) == 1 && target.squeeze(1).sizes() == at::IntArrayRef(wanted);
  throw ConfigError(
      c10::str("[Loss] ", options.loss, " compares logits ", logits.sizes(), " with 'target' ", target.sizes(),
               ", expected logits [N, C, ", fewest == 3 ? "H, W] and classes [N, H, W]" : "...] and classes [N, ...]",
               has_empty_dimension ? "; save the classes without their second dimension, array[:, 0]" : ""));
}

// Targets on the CPU.

// What is no distribution over the classes has a loss too, which means nothing.
void check_distributions(const LossOptions& options, const at::Tensor& target) {
  constexpr double kTolerance = 1e-3;
  if (target.dim() < 2 || target.size(1) == 1 || target.numel() == 0) return;
  const at::Tensor sums = target.sum(1, /*keepdim=*/false, at::kDouble);
  const double least = sums.min().item<double>(), greatest = sums.max().item<double>();
  const double share = target.min().item<double>();
  if (least >= 1 - kTolerance && greatest <= 1 + kTolerance && share >= 0) return;
  throw ConfigError(c10::str("[Loss] ", options.loss, " got 'target' ", target.scalar_type(), target.sizes(),
                             " with rows that add up to ", least, " to ", greatest, " and numbers from ", share,
                             " on, expected shares of the classes, from 0 on, that add up to 1; set model.loss to bce "
                             "for several classes per sample, or to mse, l1 or huber for numbers"));
}

std::string sample_text(int64_t row, at::IntArrayRef sample_ids) {
  const bool is_known = row < std::ssize(sample_ids);
  return is_known ? c10::str("sample ", sample_ids[static_cast<std::size_t>(row)]) : c10::str("row ", row);
}

[[noreturn]] void refuse_label(const std::string& loss, const at::Tensor& labels, const LabelInfo& info,
                               int64_t first_bad) {
  const int64_t* const values = labels.const_data_ptr<int64_t>();
  int64_t least = values[first_bad], greatest = least;
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (values[i] == info.ignored) continue;
    least = std::min(least, values[i]);
    greatest = std::max(greatest, values[i]);
  }
  const int64_t row = first_bad / std::max<int64_t>(1, labels.numel() / labels.size(0));
  const std::string way_out = greatest - least < info.classes
                                  ? "number the classes from 0, as a Csv does by task: classification"
                                  : "correct the labels";
  throw DataError(c10::str("[Loss] ", loss, " got class ", values[first_bad], " in 'target' of ",
                           sample_text(row, info.sample_ids), ", in a batch with classes from ", least, " to ",
                           greatest, ", expected 0 to ", info.classes - 1, "; ", way_out,
                           greatest < info.classes ? "" : c10::str(", or set model.num_classes to ", greatest + 1)));
}

// ATen's own error names the label alone, and on a GPU it costs the process its device.
void check_range(const std::string& loss, const at::Tensor& target, const LabelInfo& info) {
  if (info.classes == 0 || target.scalar_type() != at::kLong || target.dim() == 0) return;
  const at::Tensor labels = target.contiguous();
  const int64_t* const values = labels.const_data_ptr<int64_t>();
  const auto is_bad = [&](int64_t label) { return (label < 0 || label >= info.classes) && label != info.ignored; };
  bool some_bad = false;
  for (int64_t i = 0; i < labels.numel(); ++i) some_bad |= is_bad(values[i]);
  if (some_bad) refuse_label(loss, labels, info, std::find_if(values, values + labels.numel(), is_bad) - values);
}

void check_targets(const LossOptions& options, const at::Tensor& target, const LabelInfo& info) {
  if (options.loss == "bce") check_shares(target);
  if (takes_shares(options) && target.is_floating_point()) check_distributions(options, target);
  if (is_of_classes(options)) check_range(options.loss, target, info);
}

// Undefined: all 1.
at::Tensor weights_of_classes(const LossOptions& options, const at::Tensor& logits) {
  if (options.class_weights.empty()) return {};
  at::Tensor weights = at::tensor(options.class_weights, logits.options().requires_grad(false));
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
    return at::cross_entropy_loss(logits, target, weights, reduction, ignored, options.label_smoothing);
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
  const at::Tensor wanted = shaped_like(target, prediction, name);
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
