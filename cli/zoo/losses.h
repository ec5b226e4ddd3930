#pragma once

#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../../base/batch.h"
#include "../../base/options.h"

namespace duet {

struct LossOptions {
  std::string loss = "cross_entropy";  // or focal, mse, l1, huber, bce (of logits); of segmentation dice, focal
  double label_smoothing = 0;          // of cross_entropy, in [0, 1)
  double focal_gamma = 2;              // of focal: how little what is right already counts
  std::vector<double> class_weights;   // of cross_entropy; empty: all 1
};

// Throws ConfigError for options of another loss.
void check_loss(const LossOptions& options);

// Pictures or values as floating point: uint8 is divided by 255. Throws ConfigError that names `name` for other dtypes.
at::Tensor model_input(const Batch& batch, const std::string& name);

// Adds the options to a model's description.
template <class Add, class Of>
void add_loss_options(const Add& add, Of of) {
  add("loss", of(&LossOptions::loss), "loss of logits or predictions")
      .one_of({"cross_entropy", "focal", "mse", "l1", "huber", "bce"});
  add("label_smoothing", of(&LossOptions::label_smoothing),
      "share of each target that goes to all classes, with cross_entropy")
      .in(up_to_below(0, 1));
  add("focal_gamma", of(&LossOptions::focal_gamma), "how little samples count that are right already, with focal")
      .in(at_least(0));
  add("class_weights", of(&LossOptions::class_weights), "weight of each class in cross_entropy; empty: all 1")
      .in(at_least(0));
  add.rule([](const auto& options) { check_loss(options.loss); });
}

// Those of segmentation.
template <class Add, class Of>
void add_label_losses(const Add& add, Of of) {
  add("loss", of(&LossOptions::loss), "loss of the logits of each pixel").one_of({"cross_entropy", "focal", "dice"});
  add("focal_gamma", of(&LossOptions::focal_gamma), "how little pixels count that are right already, with focal")
      .in(at_least(0));
}

// In a mask: not to be learned and not counted.
inline constexpr int64_t kNoLabel = 255;

// How many labels count, on their device; at least 1: a batch without a label then has the loss 0.
at::Tensor label_count(const at::Tensor& target);

// Of logits [N, classes, H, W] and labels int64 [N, H, W]: the mean cross entropy or focal loss (Lin et al. 2017) over
// the labels that count, or 1 - the mean Dice coefficient of the classes in each image (Milletari et al. 2016), where
// an image counts as much as it has labels that count. All are means over these labels, so micro-batches that are
// weighted by their number give what the whole batch gives.
at::Tensor label_loss(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target);

// The mean over the batch. Targets of regression and bce are float and have as many values as the prediction; those of
// cross_entropy are int64 classes, or float shares of them. Throws ConfigError that names the mismatch.
at::Tensor loss_of(const LossOptions& options, const at::Tensor& prediction, const at::Tensor& target);

// What that is a mean over: samples, or labels that are not ignored, each as much as its class weighs. `batch` is on
// the CPU. Throws ConfigError for targets that the loss cannot take.
double loss_weight(const LossOptions& options, const Batch& batch);

}  // namespace duet
