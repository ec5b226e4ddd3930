#include "data/transform.h"
#include <utility>
#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "data/detail/sample_random.h"

namespace duet {

SampleRandom::SampleRandom(const SampleDraw& draw, int64_t index)
    : state_(mixed_bits(mixed_bits(mixed_bits(draw.seed) + static_cast<uint64_t>(draw.pass)) +
                        static_cast<uint64_t>(index))) {}

uint64_t SampleRandom::next() { return mixed_bits(state_ += 0x9E3779B97F4A7C15ULL); }

double SampleRandom::uniform(double low, double high) {
  return low + (high - low) * static_cast<double>(next() >> 11) * 0x1.0p-53;
}

int64_t SampleRandom::below(int64_t bound) { return static_cast<int64_t>(uniform(0, static_cast<double>(bound))); }

void Transform::apply(Batch& /*sample*/, SampleRandom& /*random*/) const {}
void Transform::apply_to_batch(Batch& /*batch*/, SampleRandom& /*random*/) const {}

TransformedDataset::TransformedDataset(std::shared_ptr<const Dataset> dataset,
                                       std::vector<std::unique_ptr<const Transform>> transforms)
    : dataset_(std::move(dataset)), transforms_(std::move(transforms)) {
  require<ConfigError>(dataset_ != nullptr, "[TransformedDataset] found no dataset, expected one; pass a Dataset");
}

namespace {

// Samples of one shape as one batch.
Batch stacked(const std::vector<Batch>& samples, const std::vector<int64_t>& indices) {
  Batch batch;
  for (const auto& [name, first] : samples.front().items()) {
    std::vector<at::Tensor> rows;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const at::Tensor& row = samples[i][name];
      if (row.sizes() != first.sizes()) {
        throw DataError(c10::str("[Dataset] '", name, "' of sample ", indices[i], " is ", row.sizes().slice(1),
                                 ", that of sample ", indices[0], " ", first.sizes().slice(1),
                                 ", expected one shape for a batch; add transforms: [{type: Resize, size: [H, W]}]"));
      }
      rows.push_back(row);
    }
    batch.set(name, rows.size() == 1 ? first : at::cat(rows));
  }
  return batch;
}

}  // namespace

Batch TransformedDataset::draw(const std::vector<int64_t>& indices, const SampleDraw& of) const {
  if (indices.empty()) return dataset_->draw(indices, of);
  std::vector<Batch> samples;
  for (const int64_t index : indices) {
    samples.push_back(dataset_->draw({index}, of));
    SampleRandom random(of, index);
    for (const auto& transform : transforms_) transform->apply(samples.back(), random);
  }
  Batch batch = stacked(samples, indices);
  SampleRandom random({~of.seed, of.pass}, indices.front());
  for (const auto& transform : transforms_) transform->apply_to_batch(batch, random);
  return batch;
}

void TransformedDataset::check_fits(const Dataset& training) const {
  const auto* other = dynamic_cast<const TransformedDataset*>(&training);
  dataset_->check_fits(other == nullptr ? training : *other->dataset_);
}

}  // namespace duet
