#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/build.h"
#include "cli/registry.h"
#include "data/sampler.h"
#include "io/npy.h"

namespace duet {

namespace {

at::Tensor tensor_of_all(const Dataset& dataset, const DataConfig& data) {
  constexpr int64_t kAtOnce = 1024;
  const std::string& name = data.sample_weights;
  if (const Batch first = dataset.get({0}); !first.has(name)) {
    data.node.fail("sample_weights",
                   "is no tensor of this dataset and no .npy file; " + known_and_nearest(name, keys_in(first.items())));
  }
  std::vector<at::Tensor> parts;
  for (int64_t first = 0; first < dataset.size(); first += kAtOnce) {
    std::vector<int64_t> indices(static_cast<std::size_t>(std::min(kAtOnce, dataset.size() - first)));
    std::iota(indices.begin(), indices.end(), first);
    parts.push_back(dataset.get(indices)[name]);
  }
  return at::cat(parts);
}

std::vector<double> weights_of_samples(const Dataset& dataset, const DataConfig& data) {
  const std::string& name = data.sample_weights;
  const at::Tensor weights = name.ends_with(".npy") ? read_npy(name) : tensor_of_all(dataset, data);
  if (weights.dim() != 1 || weights.size(0) != dataset.size()) {
    data.node.fail("sample_weights", c10::str("is '", name, "' of shape ", weights.sizes(), ", expected [",
                                              dataset.size(), "], one weight for each sample of the dataset"));
  }
  const at::Tensor numbers = weights.to(at::kDouble).contiguous();
  return {numbers.const_data_ptr<double>(), numbers.const_data_ptr<double>() + numbers.numel()};
}

EpochSampler pass_of(const Dataset& dataset, const DataConfig& data, uint64_t seed) {
  const bool is_weighted = data.sampler == "weighted", of_samples = is_weighted && !data.sample_weights.empty();
  if (!is_weighted && data.sampler != "class_balanced") return EpochSampler(dataset.size(), data.shuffle, seed);
  if (is_weighted && data.class_weights.empty() != of_samples) {
    if (of_samples) data.node.fail("class_weights", "and sample_weights are both there, expected one of them");
    data.node.fail_missing("class_weights",
                           "add class_weights: [1, 2, ...], one for each class, or sample_weights: <tensor or .npy>");
  }
  const int64_t count = data.samples_per_epoch == 0 ? dataset.size() : data.samples_per_epoch;
  std::optional<EpochSampler> pass;
  data.node.located([&] {
    pass.emplace(of_samples ? weights_of_samples(dataset, data) : sample_weights(dataset.labels(), data.class_weights),
                 count, seed);
  });
  return *std::move(pass);
}

}  // namespace

std::unique_ptr<Sampler> build_sampler(const Dataset& dataset, const DataConfig& data, uint64_t seed) {
  const std::vector<std::string>& ours = builtin_samplers();
  if (std::find(ours.begin(), ours.end(), data.sampler) == ours.end()) {
    SamplerContext context{dataset, data.shuffle, seed};
    return register_sampler.make(data.node.child("sampler"), context);
  }
  EpochSampler pass = pass_of(dataset, data, seed);
  if (data.infinite) return std::make_unique<InfiniteSampler>(std::move(pass));
  return std::make_unique<EpochSampler>(std::move(pass));
}

}  // namespace duet
