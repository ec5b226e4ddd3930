#include "metrics/accuracy.h"
#include <algorithm>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "metrics/detail/class_fields.h"
#include "metrics/detail/class_targets.h"

namespace duet {

namespace {

ClassInput input_of(const AccuracyOptions& options) {
  return {"Accuracy", options.target, options.prediction, options.ignore_index};
}

// How many classes come before the target, [N, ...].
at::Tensor rank_of_target(const ClassTargets& found) {
  const int64_t classes = found.scores.size(1);
  const at::Tensor target = found.target.clamp(0, classes - 1).unsqueeze(1);
  const at::Tensor own = found.scores.gather(1, target);
  std::vector<int64_t> along(found.scores.dim(), 1);
  along[1] = classes;
  const at::Tensor index = at::arange(classes, target.options()).view(along);
  const at::Tensor tied_before = found.scores.eq(own).logical_and_(index.lt(target));
  return found.scores.le(own).logical_not_().logical_or_(tied_before).sum(1);
}

}  // namespace

const OptionFields& AccuracyOptions::fields() {
  using O = AccuracyOptions;
  static const OptionFields kFields = OptionFields::of<O>("Accuracy", [](const FieldAdder<O>& add) {
    add("topk", &O::topk, "right if the target is among the k largest scores").in(at_least(1)).one_or_list();
    add_inputs(add);
    add.rule([](const O& o) {
      if (o.topk.empty())
        throw ConfigError("[Accuracy] found an empty topk, expected numbers such as 1 and 5; name one");
      for (const int64_t k : o.topk) {
        if (std::count(o.topk.begin(), o.topk.end(), k) == 1) continue;
        throw ConfigError(c10::str("[Accuracy] found topk ", k, " twice, expected each number once; remove one"));
      }
    });
  });
  return kFields;
}

Accuracy::Accuracy(AccuracyOptions options) : options_(std::move(options)) { options_.validate(); }

std::vector<std::string> Accuracy::names() const {
  if (options_.topk == std::vector<int64_t>{1}) return {"accuracy"};
  std::vector<std::string> names;
  for (const int64_t k : options_.topk) names.push_back(c10::str("accuracy/top", k));
  return names;
}

void Accuracy::begin(at::Device device) {
  if (counts_.defined()) return;
  const auto size = static_cast<int64_t>(options_.topk.size()) + 3;
  counts_ = at::zeros({size}, at::TensorOptions(at::kLong).device(device));
}

void Accuracy::reset() {
  counts_.reset();
  bad_range_.reset();
}

void Accuracy::add(const Batch& batch, const NamedTensors& outputs, double /*weight*/) {
  const c10::InferenceMode no_inference(false);  // the counts are changed in place
  const at::NoGradGuard no_grad;
  const ClassTargets found = class_targets(input_of(options_), batch, outputs);
  classes_ = found.scores.size(1);
  const int64_t largest = *std::max_element(options_.topk.begin(), options_.topk.end());
  if (largest > classes_) {
    throw DataError(c10::str("[Accuracy] found '", options_.prediction, "' of ", classes_,
                             " classes, expected at least ", largest, " for topk ", largest, "; correct topk"));
  }
  begin(found.scores.device());
  std::vector<at::Tensor> parts;
  at::Tensor broken;
  if (largest == 1) {
    const auto [best, chosen] = found.scores.max(1);
    broken = unscored(found, best);
    const at::Tensor right = chosen.eq(found.target).logical_and_(found.counted);
    parts.push_back(right.logical_and_(broken.logical_not()).sum());
  } else {
    broken = unscored(found, found.scores.amax(1));
    const at::Tensor rank = rank_of_target(found);
    const at::Tensor may_be_right = found.counted.logical_and(broken.logical_not());
    for (const int64_t k : options_.topk) parts.push_back(rank.lt(k).logical_and_(may_be_right).sum());
  }
  parts.push_back(found.counted.sum());
  parts.push_back(found.bad.sum());
  parts.push_back(broken.sum());
  counts_.add_(at::stack(parts));
  bad_range_ = bad_range(bad_range_, found);
}

MetricValues Accuracy::compute() const {
  if (!counts_.defined()) return {};
  const at::Tensor host = counts_.cpu();
  const int64_t* counts = host.const_data_ptr<int64_t>();
  const std::size_t size = options_.topk.size();
  check_targets(input_of(options_), classes_, counts[size + 1], bad_range_);
  warn_of_unscored(input_of(options_), counts[size + 2]);
  MetricValues values;
  const std::vector<std::string> results = names();
  for (std::size_t i = 0; i < size; ++i) {
    values[results[i]] = static_cast<double>(counts[i]) / static_cast<double>(counts[size]);
  }
  return values;
}

std::vector<at::Tensor> Accuracy::sums(at::Device device) {
  begin(device);
  return {counts_};
}

}  // namespace duet
