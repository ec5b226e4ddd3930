#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "base/batch.h"

namespace duet {

// How metrics over classes find their input. Private to them.
struct ClassInput {
  std::string who;  // names the metric in messages
  std::string target, prediction;
  int64_t ignore_index = -100;
};

// What one micro-batch gives such a metric, all on the device of the scores. Nothing is read back: targets that are no
// class are marked.
struct ClassTargets {
  at::Tensor scores;                 // [N, classes, ...], no gradients
  at::Tensor target;                 // int64 [N, ...]
  at::Tensor counted, ignored, bad;  // bool [N, ...]; one of the three is true
};

// Throws DataError for shapes and types that do not fit.
ClassTargets class_targets(const ClassInput& input, const Batch& batch, const NamedTensors& outputs);

// The lowest and highest of the bad targets so far, 0 where there are none: int64 [2], for the message below.
at::Tensor bad_range(const at::Tensor& so_far, const ClassTargets& targets);

// Samples that count and whose scores hold a NaN, given the largest score of each, which then is one: bool [N, ...].
// There is no class that a broken model predicts, so that they are wrong.
at::Tensor unscored(const ClassTargets& targets, const at::Tensor& largest);

// Warns of `count` such samples, if there are any.
void warn_of_unscored(const ClassInput& input, int64_t count);

// Throws the DataError for `count` bad targets, if there are any.
void check_targets(const ClassInput& input, int64_t classes, int64_t count, const at::Tensor& range);

}  // namespace duet
