#include "optim/weight_average.h"
#include <cmath>
#include <limits>
#include <map>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

namespace {

constexpr const char* kExponential = "ExponentialMovingAverage";
constexpr const char* kAnnealing = "MomentumAnnealingEMA";
constexpr const char* kStochastic = "StochasticWeightAverage";

at::Tensor constant(double value, at::Device device) {
  return at::full({}, value, at::TensorOptions().dtype(at::kDouble).device(device));
}

bool has_16_bits(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

}  // namespace

const OptionFields& WeightAverageOptions::fields() {
  using O = WeightAverageOptions;
  return described<O>("WeightAverageOptions", [](const auto& add) {
    const std::vector<std::string> types = {kExponential, kAnnealing, kStochastic};
    Range share = between(0, 1);
    share.above_low = true;
    add("type", &O::type, "how weights are averaged").one_of(types).expects("an average; known: " + join(types));
    add("momentum", &O::momentum, "how much the new value counts")
        .in(share)
        .expects("a number in (0, 1]: how much the new value counts, usually little");
    add("half_life", &O::half_life, "steps after which a weight counts half; 0: momentum counts").in(at_least(0));
    add("gamma", &O::gamma, "of MomentumAnnealingEMA").in(at_least(1));
    add("interval", &O::interval, "steps between averagings").in(at_least(1));
    add.rule([](const O& o) {
      require<ConfigError>(o.half_life == 0 || (o.momentum == O().momentum && o.type != kStochastic),
                           c10::str("[WeightAverageOptions] half_life is ", o.half_life, " beside ",
                                    o.type == kStochastic ? "a StochasticWeightAverage, which counts all weights alike"
                                                          : "a momentum, which says the same",
                                    ", expected one of the two; remove half_life"));
    });
  });
}

WeightAverage::WeightAverage(const WeightAverageOptions& options, at::Device device)
    : options_(options),
      start_on_device_(at::full({}, 0, at::TensorOptions().dtype(at::kLong).device(device))),
      zero_(constant(0, device)),
      one_(constant(1, device)),
      momentum_(constant(options.half_life > 0
                             ? 1 - std::exp2(-static_cast<double>(options.interval) / options.half_life)
                             : options.momentum,
                         device)),
      gamma_(constant(static_cast<double>(options.gamma), device)) {
  check_options(options_);
  start_at(std::numeric_limits<int64_t>::max());
}

void WeightAverage::add(const std::string& name, const at::Tensor& value, bool is_weight) {
  if (!value.is_floating_point() && !value.is_complex()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor shared = value.detach();
  const at::Tensor copy = has_16_bits(shared) ? shared.to(at::kFloat) : shared.clone();
  items_.push_back({name, value, copy, is_weight});
}

void WeightAverage::follow(const NamedTensors& values) {
  const std::map<std::string, at::Tensor> by_name(values.begin(), values.end());
  for (Item& item : items_) {
    const auto found = by_name.find(item.name);
    if (found == by_name.end()) continue;
    require<ConfigError>(
        found->second.sizes() == item.average.sizes(),
        c10::str("[WeightAverage] found '", item.name, "' of shape ", found->second.sizes(), ", expected ",
                 item.average.sizes(), " as before; keep its shape, or set update_buffers to false"));
    item.value = found->second;
  }
}

void WeightAverage::start_at(int64_t first) {
  start_ = first;
  start_on_device_.fill_(first);
}

void WeightAverage::copy_values() {
  const at::NoGradGuard no_grad;
  for (const Item& item : items_) item.average.copy_(item.value);
}

// In float64, from tensors alone.
at::Tensor WeightAverage::formula(const at::Tensor& steps) const {
  if (options_.type == kAnnealing) return at::maximum(momentum_, gamma_ / (gamma_ + steps));
  if (options_.type == kStochastic) return one_ / (at::div(steps, options_.interval, "floor") + 1);
  return momentum_;
}

at::Tensor WeightAverage::weight_of_new(const at::Tensor& applied, const at::Tensor& skipped) const {
  const at::Tensor steps = applied.reshape({}) - start_on_device_;
  at::Tensor weight = formula(steps);
  if (options_.interval > 1) weight = at::where(steps.remainder(options_.interval) == 0, weight, zero_);
  weight = at::where(steps <= 0, one_, weight);
  if (skipped.defined()) weight = at::where(skipped.reshape({}) == 0, weight, zero_);
  return weight;
}

// lerp with weight 1 copies and with weight 0 changes nothing, if all is finite. The weights of a skipped step are as
// they were before it, but its forward pass may have put NaN into a buffer.
void WeightAverage::update(const at::Tensor& applied, const at::Tensor& skipped) {
  const at::NoGradGuard no_grad;
  const at::Tensor weight = weight_of_new(applied, skipped);
  std::map<at::ScalarType, at::Tensor> weights;
  for (const Item& item : items_) {
    const at::ScalarType dtype = item.average.scalar_type();
    at::Tensor& typed = weights[dtype];
    if (!typed.defined()) typed = weight.to(dtype);
    at::Tensor value = item.value;
    if (value.scalar_type() != dtype) value = value.to(dtype);
    if (!item.is_weight && skipped.defined()) value = at::where(skipped.reshape({}) == 0, value, item.average);
    item.average.lerp_(value, typed);
  }
}

}  // namespace duet
