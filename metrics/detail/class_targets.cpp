#include "metrics/detail/class_targets.h"
#include <tuple>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"
#include "metrics/detail/metric_output.h"

namespace duet {

namespace {

void check_scores(const ClassInput& input, const at::Tensor& scores) {
  if (scores.is_complex() || scores.scalar_type() == at::kBool || scores.dim() == 0) {
    throw DataError(c10::str("[", input.who, "] found '", input.prediction, "' ", scores.scalar_type(), " ",
                             scores.sizes(), ", expected real scores [N, classes, ...]; return the logits"));
  }
  if (scores.dim() > 1 && scores.size(1) > 1) return;
  throw DataError(c10::str("[", input.who, "] found '", input.prediction, "' ", scores.scalar_type(), " ",
                           scores.sizes(),
                           ", expected scores [N, classes, ...] of two classes or more; for one logit x per sample "
                           "return stack({0 * x, x}, 1)"));
}

void check_target(const ClassInput& input, const at::Tensor& target, const at::Tensor& scores) {
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) {
    throw DataError(c10::str("[", input.who, "] found '", input.target, "' ", target.scalar_type(), " ", target.sizes(),
                             ", expected class numbers, int64 [N, ...]; convert it in the dataset"));
  }
  std::vector<int64_t> expected = scores.sizes().vec();
  expected.erase(expected.begin() + 1);
  if (target.sizes() == at::IntArrayRef(expected)) return;
  throw DataError(c10::str("[", input.who, "] found '", input.target, "' of shape ", target.sizes(), ", expected ",
                           at::IntArrayRef(expected), " to match '", input.prediction, "' ", scores.sizes(),
                           "; give one class number per prediction"));
}

}  // namespace

ClassTargets class_targets(const ClassInput& input, const Batch& batch, const NamedTensors& outputs) {
  const at::Tensor& scores = metric_output(input.who, outputs, input.prediction);
  check_scores(input, scores);
  check_target(input, batch[input.target], scores);
  ClassTargets found;
  found.scores = scores.detach();
  found.target = batch[input.target].to(scores.device(), at::kLong, /*non_blocking=*/true);
  found.ignored = found.target.eq(input.ignore_index);
  const at::Tensor outside = found.target.lt(0).logical_or_(found.target.ge(scores.size(1)));
  found.bad = outside.logical_and(found.ignored.logical_not());
  found.counted = found.ignored.logical_or(found.bad).logical_not_();
  return found;
}

at::Tensor bad_range(const at::Tensor& so_far, const ClassTargets& targets) {
  if (targets.target.numel() == 0) return so_far;
  const auto [low, high] = at::aminmax(targets.target.mul(targets.bad));
  if (!so_far.defined()) return at::stack({low, high});
  return at::stack({at::minimum(so_far[0], low), at::maximum(so_far[1], high)});
}

at::Tensor unscored(const ClassTargets& targets, const at::Tensor& largest) {
  return largest.ne(largest).logical_and_(targets.counted);
}

void warn_of_unscored(const ClassInput& input, int64_t count) {
  if (count == 0) return;
  log_warning(c10::str("[", input.who, "] found NaN in the '", input.prediction, "' of ", count,
                       " samples, which count as wrong, expected numbers; look for the weights or inputs that are not "
                       "finite"));
}

void check_targets(const ClassInput& input, int64_t classes, int64_t count, const at::Tensor& range) {
  if (count == 0) return;
  std::string where;
  if (range.defined()) {
    const at::Tensor both = range.cpu();
    const int64_t* ends = both.const_data_ptr<int64_t>();
    const int64_t one = ends[0] < 0 ? ends[0] : ends[1];
    if (one != 0) where = c10::str(" (", one, " is one of them)");  // 0: they are another rank's
  }
  throw DataError(c10::str("[", input.who, "] found ", count, " class numbers in '", input.target,
                           "' that do not exist", where, ", expected 0 to ",
                           classes > 0 ? std::to_string(classes - 1) : "classes - 1", ", or ignore_index ",
                           input.ignore_index, " where nothing counts; correct the labels, or set ignore_index"));
}

}  // namespace duet
