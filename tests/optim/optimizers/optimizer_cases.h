#pragma once

#include <bit>
#include <functional>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Functions.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>
#include "optim/optimizers/detail/optimizer.h"
#include "tests/support/over_tensors.h"

// Parameters and gradients as in optimizer_reference.py: formulas without rounding.

namespace duet::testing {

inline at::Tensor formula(const std::vector<int64_t>& sizes, int64_t factor, int64_t shift, int64_t modulus,
                          int64_t divisor) {
  std::vector<float> values;
  for (int64_t i = 0; i < c10::multiply_integers(sizes); ++i) {
    values.push_back(static_cast<float>((i * factor + shift) % modulus - modulus / 2) / static_cast<float>(divisor));
  }
  return at::tensor(values).reshape(sizes);
}

inline const std::vector<std::vector<int64_t>>& golden_sizes() {
  static const std::vector<std::vector<int64_t>> sizes = {{4, 6}, {17}, {}, {5, 3}};
  return sizes;
}

// The last one has transposed memory.
inline at::Tensor laid_out(std::size_t parameter, const at::Tensor& value) {
  return parameter == 3 ? value.t().contiguous().t() : value;
}

inline NamedTensors initial_parameters() {
  NamedTensors parameters;
  for (std::size_t p = 0; p < golden_sizes().size(); ++p) {
    const at::Tensor value = laid_out(p, formula(golden_sizes()[p], 7, 3 * static_cast<int64_t>(p), 11, 8));
    parameters.emplace_back("p" + std::to_string(p), value.requires_grad_(true));
  }
  return parameters;
}

inline at::Tensor gradient_of(std::size_t parameter, int64_t step) {
  const int64_t shift = step * 61 + step * step * 7 + static_cast<int64_t>(parameter) * 29;
  return laid_out(parameter, formula(golden_sizes()[parameter], 97, shift, 251, int64_t{128} << (step / 100)));
}

// Parameter 1 sits out every third step, parameter 2 the first four.
inline bool has_gradient(std::size_t parameter, int64_t step) {
  return !((parameter == 1 && step % 3 == 1) || (parameter == 2 && step < 4));
}

inline void step_optimizer(Optimizer& optimizer) {
  optimizer.begin();
  optimizer.step();
  optimizer.end();
}

// One step of a golden trajectory that started with the rate `lr`.
inline void golden_step(Optimizer& optimizer, const NamedTensors& parameters, double lr, int64_t step) {
  optimizer.set(0, "lr", lr / static_cast<double>(1 + step / 100));
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    parameters[p].second.mutable_grad() = has_gradient(p, step) ? gradient_of(p, step) : at::Tensor();
  }
  step_optimizer(optimizer);
}

inline std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kFloat).contiguous().flatten();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

inline std::vector<float> values_of(const NamedTensors& parameters) {
  std::vector<float> values;
  for (const auto& item : parameters) {
    for (const float value : values_of(item.second)) values.push_back(value);
  }
  return values;
}

inline void expect_bits(const std::vector<float>& expected, const std::vector<float>& found, const std::string& where) {
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(found[i]))
        << where << " element " << i << ": " << expected[i] << " became " << found[i];
  }
}

inline const std::string kOverTensors = "OverTensors";

// LBFGS, whose step evaluates the loss, has tests of its own.
inline std::vector<std::string> types() {
  std::vector<std::string> all = OptimizerOptions::built_in_types();
  std::erase(all, "LBFGS");
  for (const char* fused : {"SGD", "Adam", "AdamW", "Adagrad"}) all.push_back(fused + kOverTensors);
  return all;
}

// With momentum where it is an option, so that every type keeps something.
inline OptimizerOptions options_of(const std::string& name, const std::function<void(OptimizerOptions&)>& change = {}) {
  const bool is_over_tensors = name.ends_with(kOverTensors);
  const std::string type = is_over_tensors ? name.substr(0, name.size() - kOverTensors.size()) : name;
  OptimizerOptions options = OptimizerOptions::of_type(type);
  options.set("lr", 0.1);
  if (type == "SGD" || type == "RMSprop") options.set("momentum", 0.9);
  if (type == "SGD") options.set("dampening", 0.5);
  if (change) change(options);
  return is_over_tensors ? over_tensors(options) : options;
}

}  // namespace duet::testing
