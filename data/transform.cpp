#include "data/transform.h"
#include <utility>
#include "data/detail/samples.h"

namespace duet {

SampleRandom::SampleRandom(const SampleDraw& draw, int64_t index)
    : state_(mixed_bits(mixed_bits(mixed_bits(draw.seed) + static_cast<uint64_t>(draw.pass)) +
                        static_cast<uint64_t>(index))) {
  if (draw.occurrence > 0) state_ = mixed_bits(mixed_bits(state_) + static_cast<uint64_t>(draw.occurrence));
}

uint64_t SampleRandom::next() { return mixed_bits(state_ += 0x9E3779B97F4A7C15ULL); }

double SampleRandom::uniform(double low, double high) {
  return low + (high - low) * static_cast<double>(next() >> 11) * 0x1.0p-53;
}

int64_t SampleRandom::below(int64_t bound) { return static_cast<int64_t>(uniform(0, static_cast<double>(bound))); }

void Transform::apply(Batch& /*sample*/, SampleRandom& /*random*/) const {}
void Transform::apply_to_batch(Batch& /*batch*/, SampleRandom& /*random*/) const {}
void Transform::undo_for_show(Batch& /*batch*/) const {}

Batch transformed(std::vector<Batch> samples, const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws,
                  const Transforms& transforms) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    SampleRandom random(draws[i], indices[i]);
    for (const auto& transform : transforms) transform->apply(samples[i], random);
  }
  Batch batch = stacked(samples, indices);
  SampleDraw of_batch = draws.front();
  of_batch.seed = ~of_batch.seed;
  SampleRandom random(of_batch, indices.front());
  for (const auto& transform : transforms) transform->apply_to_batch(batch, random);
  return batch;
}

Batch untransformed_for_show(Batch batch, const Transforms& transforms) {
  for (auto transform = transforms.rbegin(); transform != transforms.rend(); ++transform) {
    (*transform)->undo_for_show(batch);
  }
  return batch;
}

TransformedDataset::TransformedDataset(std::shared_ptr<const Dataset> dataset, Transforms transforms)
    : DatasetView(std::move(dataset)), transforms_(std::move(transforms)) {}

Batch TransformedDataset::draw(const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws) const {
  if (indices.empty()) return viewed().draw({}, {});
  std::vector<Batch> samples;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    SampleDraw below = draws[i];
    below.seed = mixed_bits(~below.seed);
    samples.push_back(viewed().draw({indices[i]}, {below}));
  }
  return transformed(std::move(samples), indices, draws, transforms_);
}

Batch TransformedDataset::shown(const Batch& batch, const std::vector<int64_t>& indices) const {
  return viewed().shown(untransformed_for_show(batch, transforms_), indices);
}

}  // namespace duet
