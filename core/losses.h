#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../base/options.h"

namespace duet {

struct LossOptions {
  std::string loss = "cross_entropy";  // or focal, dice (of pixels), mse, l1, huber, bce (of logits)
  double label_smoothing = 0;          // of cross_entropy, in [0, 1)
  double focal_gamma = 2;              // of focal: how little what is right already counts
  std::vector<double> class_weights;   // of cross_entropy; empty: all 1
};

// Throws ConfigError for options of another loss.
void check_loss(const LossOptions& options);

// Adds the options to a model's description, with the losses that fit it: a classifier's, if not given.
template <class Add, class Of>
void add_loss_options(const Add& add, Of of,
                      std::vector<std::string> losses = {"cross_entropy", "focal", "mse", "l1", "huber", "bce"}) {
  add("loss", of(&LossOptions::loss), "loss of logits or predictions").one_of(std::move(losses));
  add("label_smoothing", of(&LossOptions::label_smoothing),
      "share of each target that goes to all classes, with cross_entropy")
      .in(up_to_below(0, 1));
  add("focal_gamma", of(&LossOptions::focal_gamma),
      "how little samples or pixels count that are right already, with focal")
      .in(at_least(0));
  add("class_weights", of(&LossOptions::class_weights), "weight of each class in cross_entropy; empty: all 1")
      .in(at_least(0));
  add.rule([](const auto& options) { check_loss(options.loss); });
}

// The loss of what a model gives, a mean: of numbers (mse, l1, huber, bce) over values, whose float targets are as many
// as the predictions; of classes over the labels that are not `ignored`, each as much as its class weighs, with logits
// [N, C, ...] and targets int64 [N, ...]. cross_entropy and focal also take shares of classes, float as the logits;
// focal is that of Lin et al. 2017; dice is 1 - the mean Dice coefficient of the classes in each image (Milletari et
// al. 2016), where an image counts as much as it has labels that count. Without any label that counts it is 0, or as
// PyTorch has it NaN (cross_entropy of logits [N, C]). Throws ConfigError that names the mismatch.
at::Tensor loss_of(const LossOptions& options, const at::Tensor& prediction, const at::Tensor& target,
                   int64_t ignored = -100);

// What is known of class labels beside the tensor.
struct LabelInfo {
  int64_t ignored = -100;           // the label that does not count
  int64_t classes = 0;              // 0: not known
  at::IntArrayRef sample_ids = {};  // the samples' numbers in their dataset, for messages; empty: not known
};

// What that is a mean over, so that micro-batches weighted by it give what the whole batch gives. `target` is on the
// CPU, so that its values are looked at here, before each step of either mode. Throws ConfigError for targets that the
// loss cannot take, DataError for labels of classes that do not exist.
double loss_weight(const LossOptions& options, const at::Tensor& target, const LabelInfo& info = {});

}  // namespace duet
