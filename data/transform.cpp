#include "data/transform.h"
#include <utility>
#include "data/detail/sample_random.h"
#include "data/detail/stacked.h"

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
void Transform::undo_for_show(Batch& /*batch*/) const {}

TransformedDataset::TransformedDataset(std::shared_ptr<const Dataset> dataset,
                                       std::vector<std::unique_ptr<const Transform>> transforms)
    : DatasetView(std::move(dataset)), transforms_(std::move(transforms)) {}

Batch TransformedDataset::draw(const std::vector<int64_t>& indices, const SampleDraw& of) const {
  if (indices.empty()) return viewed().draw(indices, of);
  std::vector<Batch> samples;
  for (const int64_t index : indices) {
    samples.push_back(viewed().draw({index}, of));
    SampleRandom random(of, index);
    for (const auto& transform : transforms_) transform->apply(samples.back(), random);
  }
  Batch batch = stacked(samples, indices);
  SampleRandom random({~of.seed, of.pass}, indices.front());
  for (const auto& transform : transforms_) transform->apply_to_batch(batch, random);
  return batch;
}

Batch TransformedDataset::shown(const Batch& batch, const std::vector<int64_t>& indices) const {
  Batch undone = batch;
  for (auto transform = transforms_.rbegin(); transform != transforms_.rend(); ++transform) {
    (*transform)->undo_for_show(undone);
  }
  return viewed().shown(undone, indices);
}

}  // namespace duet
