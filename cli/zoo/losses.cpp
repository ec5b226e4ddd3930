#include "cli/zoo/losses.h"
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/task.h"

namespace duet {

namespace {

at::Tensor shaped_like(const at::Tensor& target, const at::Tensor& prediction, const std::string& loss) {
  if (target.numel() != prediction.numel()) {
    throw ConfigError(c10::str("[Loss] ", loss, " compares a prediction ", prediction.sizes(), " with 'target' ",
                               target.sizes(), ", expected as many values; set the model's num_classes to ",
                               target.numel() / std::max<int64_t>(1, prediction.size(0))));
  }
  return target.to(prediction.scalar_type()).reshape(prediction.sizes());
}

constexpr int64_t kIgnored = -100;

void check_classes(const std::string& loss, const at::Tensor& target) {
  if (target.scalar_type() == at::kLong) return;
  throw ConfigError(c10::str("[Loss] ", loss, " got 'target' ", target.scalar_type(), target.sizes(),
                             ", expected int64 classes; set cast: {target: int64} at the data",
                             target.is_floating_point() ? ", or model.loss to mse, l1 or huber for regression" : ""));
}

// Labels on the CPU, each as much as its class weighs.
double sum_of_weights(const LossOptions& options, const at::Tensor& target) {
  double sum = 0;
  const at::Tensor labels = target.contiguous();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    const int64_t label = labels.const_data_ptr<int64_t>()[i];
    if (label == kIgnored) continue;
    const bool is_known = label >= 0 && label < std::ssize(options.class_weights);
    sum += is_known ? options.class_weights[static_cast<std::size_t>(label)] : 1;
  }
  return sum;
}

void check_shares(const at::Tensor& target) {
  const at::Tensor wanted = target.to(at::kDouble);
  if (wanted.numel() == 0 || (wanted.min().item<double>() >= 0 && wanted.max().item<double>() <= 1)) return;
  throw ConfigError(c10::str("[Loss] bce got targets from ", wanted.min().item<double>(), " to ",
                             wanted.max().item<double>(),
                             ", expected 0 to 1; set model.loss to mse for other numbers"));
}

at::Tensor cross_entropy(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target) {
  if (!target.is_floating_point() || target.dim() != logits.dim()) check_classes("cross_entropy", target);
  at::Tensor weights;
  if (!options.class_weights.empty()) {
    weights = at::tensor(options.class_weights, logits.options().requires_grad(false));
    if (weights.numel() != logits.size(1)) {
      throw ConfigError(c10::str("[Loss] class_weights has ", weights.numel(), " numbers, expected ", logits.size(1),
                                 ", one for each class"));
    }
  }
  constexpr int64_t kMean = 1;
  return at::cross_entropy_loss(logits, target, weights, kMean, kIgnored, options.label_smoothing);
}

// Summed here and not by the loss, whose sum over an image differs from run to run on a GPU. What does not count is 0.
at::Tensor each_cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignored) {
  return at::cross_entropy_loss(logits, target, {}, at::Reduction::None, ignored);
}

at::Tensor focused(const at::Tensor& cross_entropy, double gamma) {
  return (1 - (-cross_entropy).exp()).pow(gamma) * cross_entropy;
}

// A coefficient of the whole batch would be another loss with each way to cut it into micro-batches and ranks.
at::Tensor dice_loss(const at::Tensor& logits, const at::Tensor& target) {
  const at::Tensor counts = target.ne(kNoLabel).unsqueeze(1);
  const at::Tensor labels = target.unsqueeze(1).masked_fill(counts.logical_not(), 0);
  const at::Tensor share = at::softmax(logits, 1) * counts;
  const at::Tensor is_class = at::zeros_like(share).scatter(1, labels, 1.0) * counts;
  const std::vector<int64_t> pixels = {2, 3};
  const at::Tensor both = (share * is_class).sum(pixels), all = share.sum(pixels) + is_class.sum(pixels);
  const at::Tensor of_image = 1 - ((2 * both + 1) / (all + 1)).mean(1);
  const at::Tensor labels_in_image = counts.flatten(1).sum(1);
  return (of_image * labels_in_image).sum() / labels_in_image.sum().clamp_min(1);
}

}  // namespace

void check_loss(const LossOptions& options) {
  if (options.loss == "cross_entropy" || (options.label_smoothing == 0 && options.class_weights.empty())) return;
  throw ConfigError("[Loss] label_smoothing and class_weights belong to loss: cross_entropy, found them with loss: " +
                    options.loss + "; remove them");
}

at::Tensor model_input(const Batch& batch, const std::string& name) {
  const at::Tensor& input = batch[name];
  if (input.scalar_type() == at::kByte) return input.to(at::kFloat) / 255;
  if (input.scalar_type() == at::kFloat) return input;
  throw ConfigError(c10::str("[Model] '", name, "' is ", input.scalar_type(), input.sizes(),
                             ", expected float32, or uint8 pictures; set cast: {", name, ": float32} at the data"));
}

at::Tensor label_count(const at::Tensor& target) { return target.ne(kNoLabel).sum().clamp_min(1); }

at::Tensor label_loss(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target) {
  check_classes(options.loss, target);
  if (options.loss == "dice") return dice_loss(logits, target);
  const at::Tensor each = each_cross_entropy(logits, target, kNoLabel);
  return (options.loss == "focal" ? focused(each, options.focal_gamma) : each).sum() / label_count(target);
}

at::Tensor loss_of(const LossOptions& options, const at::Tensor& prediction, const at::Tensor& target) {
  if (options.loss == "cross_entropy") return cross_entropy(options, prediction, target);
  if (options.loss == "focal") {
    check_classes("focal", target);
    const at::Tensor each = focused(each_cross_entropy(prediction, target, kIgnored), options.focal_gamma);
    return each.sum() / target.ne(kIgnored).sum().clamp_min(1);
  }
  const at::Tensor wanted = shaped_like(target, prediction, options.loss);
  if (options.loss == "mse") return at::mse_loss(prediction, wanted);
  if (options.loss == "l1") return at::l1_loss(prediction, wanted);
  if (options.loss == "huber") return at::huber_loss(prediction, wanted);
  return at::binary_cross_entropy_with_logits(prediction, wanted);
}

double loss_weight(const LossOptions& options, const Batch& batch) {
  const at::Tensor& target = batch["target"];
  if (options.loss == "bce") check_shares(target);
  const bool has_classes = options.loss == "cross_entropy" || options.loss == "focal";
  if (!has_classes || target.scalar_type() != at::kLong) {
    const bool counts = has_classes && !target.is_floating_point();
    return static_cast<double>(counts ? counted_targets(target) : batch.size());
  }
  return options.class_weights.empty() ? static_cast<double>(counted_targets(target)) : sum_of_weights(options, target);
}

}  // namespace duet
