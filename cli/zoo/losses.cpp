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

at::Tensor cross_entropy(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target) {
  if (target.is_floating_point() && target.dim() != logits.dim()) {
    throw ConfigError(c10::str("[Loss] cross_entropy got 'target' ", target.scalar_type(), target.sizes(),
                               ", expected int64 classes; set model.loss to mse, l1 or huber for regression, or cast "
                               "the target"));
  }
  at::Tensor weights;
  if (!options.class_weights.empty()) {
    weights = at::tensor(options.class_weights, logits.options().requires_grad(false));
    if (weights.numel() != logits.size(1)) {
      throw ConfigError(c10::str("[Loss] class_weights has ", weights.numel(), " numbers, expected ", logits.size(1),
                                 ", one for each class"));
    }
  }
  constexpr int64_t kMean = 1, kIgnored = -100;
  return at::cross_entropy_loss(logits, target, weights, kMean, kIgnored, options.label_smoothing);
}

// Summed here and not by the loss, whose sum over an image differs from run to run on a GPU. What does not count is 0.
at::Tensor each_cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignored) {
  return at::cross_entropy_loss(logits, target, {}, at::Reduction::None, ignored);
}

at::Tensor focused(const at::Tensor& cross_entropy, double gamma) {
  return (1 - (-cross_entropy).exp()).pow(gamma) * cross_entropy;
}

at::Tensor dice_loss(const at::Tensor& logits, const at::Tensor& target) {
  const at::Tensor counts = target.ne(kNoLabel).unsqueeze(1);
  const at::Tensor labels = target.unsqueeze(1).masked_fill(counts.logical_not(), 0);
  const at::Tensor share = at::softmax(logits, 1) * counts;
  const at::Tensor is_class = at::zeros_like(share).scatter(1, labels, 1.0) * counts;
  const std::vector<int64_t> pixels = {0, 2, 3};
  const at::Tensor both = (share * is_class).sum(pixels), all = share.sum(pixels) + is_class.sum(pixels);
  return 1 - ((2 * both + 1) / (all + 1)).mean();
}

}  // namespace

at::Tensor label_count(const at::Tensor& target) { return target.ne(kNoLabel).sum().clamp_min(1); }

at::Tensor label_loss(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target) {
  if (options.loss == "dice") return dice_loss(logits, target);
  const at::Tensor each = each_cross_entropy(logits, target, kNoLabel);
  return (options.loss == "focal" ? focused(each, options.focal_gamma) : each).sum() / label_count(target);
}

at::Tensor loss_of(const LossOptions& options, const at::Tensor& prediction, const at::Tensor& target) {
  if (options.loss == "cross_entropy") return cross_entropy(options, prediction, target);
  if (options.loss == "focal") {
    constexpr int64_t kIgnored = -100;
    return focused(each_cross_entropy(prediction, target, kIgnored), options.focal_gamma).mean();
  }
  const at::Tensor wanted = shaped_like(target, prediction, options.loss);
  if (options.loss == "mse") return at::mse_loss(prediction, wanted);
  if (options.loss == "l1") return at::l1_loss(prediction, wanted);
  if (options.loss == "huber") return at::huber_loss(prediction, wanted);
  return at::binary_cross_entropy_with_logits(prediction, wanted);
}

double loss_weight(const LossOptions& options, const Batch& batch) {
  const at::Tensor& target = batch["target"];
  const bool counts_labels = options.loss == "cross_entropy" && !target.is_floating_point();
  return static_cast<double>(counts_labels ? counted_targets(target) : batch.size());
}

}  // namespace duet
