#pragma once

#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../../base/batch.h"
#include "../../base/options.h"

namespace duet {

struct LossOptions {
  std::string loss = "cross_entropy";  // or mse, l1, huber, bce (of logits)
  double label_smoothing = 0;          // of cross_entropy, in [0, 1)
  std::vector<double> class_weights;   // of cross_entropy; empty: all 1
};

// Adds the options to a model's description.
template <class Add, class Of>
void add_loss_options(const Add& add, Of of) {
  add("loss", of(&LossOptions::loss), "of logits or predictions")
      .one_of({"cross_entropy", "mse", "l1", "huber", "bce"});
  add("label_smoothing", of(&LossOptions::label_smoothing), "of cross_entropy").in(up_to_below(0, 1));
  add("class_weights", of(&LossOptions::class_weights), "of cross_entropy; empty: all 1").in(at_least(0));
}

// The mean over the batch. Targets of regression and bce are float and have as many values as the prediction; those of
// cross_entropy are int64 classes, or float shares of them. Throws ConfigError that names the mismatch.
at::Tensor loss_of(const LossOptions& options, const at::Tensor& prediction, const at::Tensor& target);

// What that is a mean over: samples, or labels that are not ignored.
double loss_weight(const LossOptions& options, const Batch& batch);

}  // namespace duet
