#include "metrics/class_metric.h"
#include <set>
#include <tuple>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "metrics/detail/class_targets.h"

namespace duet {

namespace {

ClassInput input_of(const std::string& who, const ClassOptions& options) {
  return {who, options.target, options.prediction, options.ignore_index};
}

void check(const std::string& who, const ClassOptions& options) {
  constexpr int64_t kMost = 1 << 14;  // a matrix of 2 GiB
  if (options.num_classes < 2 || options.num_classes > kMost) {
    throw ConfigError(c10::str("[", who, "] found num_classes ", options.num_classes, ", expected 2 to ", kMost,
                               "; set the number of scores per sample"));
  }
  const std::vector<std::string>& names = options.class_names;
  if (names.empty()) return;
  if (static_cast<int64_t>(names.size()) != options.num_classes) {
    throw ConfigError(c10::str("[", who, "] found ", names.size(),
                               " class_names, expected num_classes = ", options.num_classes, "; name every class"));
  }
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name.empty() || !seen.insert(name).second) {
      throw ConfigError("[" + who + "] found class_names with '" + name + "' " + (name.empty() ? "empty" : "twice") +
                        ", expected a name of its own for each class; correct it");
    }
  }
}

}  // namespace

int64_t ClassMetric::Matrix::of_target(int64_t c) const {
  int64_t sum = 0;
  for (int64_t p = 0; p <= classes; ++p) sum += at(c, p);
  return sum;
}

int64_t ClassMetric::Matrix::of_prediction(int64_t c) const {
  int64_t sum = 0;
  for (int64_t t = 0; t < classes; ++t) sum += at(t, c);
  return sum;
}

int64_t ClassMetric::Matrix::of_none() const { return of_prediction(classes); }

int64_t ClassMetric::Matrix::correct() const {
  int64_t sum = 0;
  for (int64_t c = 0; c < classes; ++c) sum += at(c, c);
  return sum;
}

int64_t ClassMetric::Matrix::total() const {
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  return sum;
}

ClassMetric::ClassMetric(std::string who, ClassOptions options) : who_(std::move(who)), options_(std::move(options)) {
  check(who_, options_);
  if (!options_.class_names.empty()) return;
  for (int64_t c = 0; c < options_.num_classes; ++c) options_.class_names.push_back(std::to_string(c));
}

void ClassMetric::begin(at::Device device) {
  if (counts_.defined()) return;
  const int64_t size = options_.num_classes * (options_.num_classes + 1) + 2;
  counts_ = at::zeros({size}, at::TensorOptions(at::kLong).device(device));
}

void ClassMetric::reset() {
  counts_.reset();
  bad_range_.reset();
  warned_ = false;
}

void ClassMetric::add(const Batch& batch, const NamedTensors& outputs, double /*weight*/) {
  const c10::InferenceMode no_inference(false);  // the counts are changed in place
  const at::NoGradGuard no_grad;
  const ClassTargets found = class_targets(input_of(who_, options_), batch, outputs);
  const int64_t classes = options_.num_classes;
  if (found.scores.size(1) != classes) {
    throw DataError(c10::str("[", who_, "] found '", options_.prediction, "' ", found.scores.sizes(), ", expected ",
                             classes, " classes; set num_classes: ", found.scores.size(1)));
  }
  begin(found.scores.device());
  // Each sample goes to one place, so that nothing has to be picked out, which would wait for the device.
  const auto [largest, chosen] = found.scores.max(1);  // 2.5 times as fast as argmax(1) on a CPU
  const at::Tensor predicted = chosen.masked_fill(unscored(found, largest), classes);
  const at::Tensor place = found.target.mul(classes + 1).add_(predicted);
  const int64_t size = classes * (classes + 1);
  const at::Tensor places = at::where(found.counted, place, at::where(found.bad, size + 1, size));
  counts_.scatter_add_(0, places.reshape(-1), at::ones({1}, counts_.options()).expand(places.numel()));
  bad_range_ = bad_range(bad_range_, found);
}

ClassMetric::Matrix ClassMetric::matrix() const {
  Matrix matrix{options_.num_classes, {}};
  if (!counts_.defined()) return matrix;
  const at::Tensor host = counts_.cpu();
  const int64_t* counts = host.const_data_ptr<int64_t>();
  const int64_t size = matrix.classes * (matrix.classes + 1);
  check_targets(input_of(who_, options_), matrix.classes, counts[size + 1], bad_range_);
  matrix.counts.assign(counts, counts + size);
  if (!std::exchange(warned_, true)) warn_of_unscored(input_of(who_, options_), matrix.of_none());
  return matrix;
}

std::vector<at::Tensor> ClassMetric::sums(at::Device device) {
  begin(device);
  return {counts_};
}

}  // namespace duet
