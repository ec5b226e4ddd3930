#include "data/transform.h"
#include <utility>
#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>
#include "base/detail/split_mix.h"
#include "base/error.h"
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

namespace {

void check_row(const at::Tensor& row, const at::Tensor& first, const std::string& what) {
  if (row.scalar_type() != first.scalar_type()) {
    throw DataError(c10::str(what, " is ", row.scalar_type(), ", that of the first sample ", first.scalar_type(),
                             ", expected one dtype for a batch; set cast: {<tensor>: <dtype>}"));
  }
  if (row.sizes() != first.sizes()) {
    throw DataError(c10::str(what, " is ", row.sizes().slice(1), ", that of the first sample ", first.sizes().slice(1),
                             ", expected one shape for a batch; add transforms: [{type: Resize, size: [H, W]}]"));
  }
}

}  // namespace

Batch stacked(const std::vector<Batch>& samples, const std::vector<int64_t>& indices) {
  Batch batch;
  for (const auto& [name, first] : samples.front().items()) {
    std::vector<at::Tensor> rows;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!samples[i].has(name) || samples[i].items().size() != samples.front().items().size()) {
        throw DataError(c10::str("[Dataset] sample ", indices[i], " has other tensors than sample ", indices[0],
                                 ", where '", name, "' is one; expected the same names in all; set rename"));
      }
      check_row(samples[i][name], first, c10::str("[Dataset] '", name, "' of sample ", indices[i]));
      rows.push_back(samples[i][name]);
    }
    batch.set(name, rows.size() == 1 ? first : at::cat(rows));
  }
  return batch;
}

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

Batch TransformedDataset::denormalized(const Batch& batch, const std::vector<int64_t>& indices) const {
  return viewed().denormalized(untransformed_for_show(batch, transforms_), indices);
}

}  // namespace duet
