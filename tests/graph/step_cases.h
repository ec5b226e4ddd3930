#pragma once

#include <functional>
#include <string>
#include <vector>
#include <torch/torch.h>
#include "base/batch.h"

// What real models do inside a step, each as one small loss over a model of its own.

namespace duet::testing {

namespace F = torch::nn::functional;
using at::Tensor;

struct Model : torch::nn::Module {
  Tensor parameter(const std::string& name, at::IntArrayRef sizes, at::TensorOptions options = {}) {
    return register_parameter(name, torch::randn(sizes, options) * 0.3);
  }
  template <class Holder>
  Holder module(const std::string& name, Holder holder) {
    return register_module(name, holder);
  }
};

using Loss = std::function<Tensor(const Batch&)>;
using Make = std::function<Loss(Model&)>;
using MakeBatch = std::function<Batch(uint64_t seed)>;

inline Batch vectors(uint64_t seed) {
  at::Generator g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"x", torch::randn({8, 16}, g)}, {"target", torch::randint(5, {8}, g, torch::kInt64)}};
}

inline Batch images(uint64_t seed) {
  at::Generator g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"x", torch::randn({4, 4, 9, 9}, g)}, {"target", torch::randint(5, {4}, g, torch::kInt64)}};
}

inline Batch tokens(uint64_t seed) {
  at::Generator g = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {{"x", torch::randint(11, {4, 6}, g, torch::kInt64)}, {"target", torch::randint(5, {4}, g, torch::kInt64)}};
}

struct Case {
  std::string name;
  Make make;
  MakeBatch batch = vectors;
  int64_t accumulate = 1;
  std::string reason{};  // why it runs eager; empty: it is captured
};

// Every parameter of the model must take part in the loss; most losses start from this.
struct Base {
  torch::nn::Linear a{nullptr}, b{nullptr};
  explicit Base(Model& m, int64_t in = 16, int64_t out = 5)
      : a(m.module("a", torch::nn::Linear(in, 8))), b(m.module("b", torch::nn::Linear(8, out))) {}
};

// The cases, in order: add(name, make, batch, accumulate, reason).
struct Cases {
  void operator()(const std::string& name, const Make& make, const MakeBatch& batch = vectors, int64_t accumulate = 1,
                  const std::string& reason = "") {
    cases.push_back({name, make, batch, accumulate, reason});
  }
  std::vector<Case> cases;
};

void add_tensor_cases(Cases& add);  // views, constants, indexing, products
void add_layer_cases(Cases& add);   // layers, randomness, losses

}  // namespace duet::testing
