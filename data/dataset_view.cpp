#include <algorithm>
#include <limits>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/split_mix.h"
#include "base/error.h"
#include "data/dataset.h"
#include "data/detail/samples.h"

namespace duet {

DatasetView::DatasetView(std::shared_ptr<const Dataset> dataset) : dataset_(std::move(dataset)) {
  require<ConfigError>(dataset_ != nullptr, "[DatasetView] found no dataset, expected one; pass a Dataset");
}

SubsetDataset::SubsetDataset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> indices)
    : DatasetView(std::move(dataset)), indices_(std::move(indices)) {
  require<DataError>(!indices_.empty(), "[SubsetDataset] found no index, expected at least one; pass some");
  check_indices("SubsetDataset", indices_, viewed().size());
}

std::vector<int64_t> SubsetDataset::source_indices(const std::vector<int64_t>& indices) const {
  check_indices("SubsetDataset", indices, size());
  std::vector<int64_t> below;
  for (const int64_t index : indices) below.push_back(indices_[static_cast<std::size_t>(index)]);
  return below;
}

std::vector<int64_t> SubsetDataset::labels() const {
  const std::vector<int64_t> all = viewed().labels();
  std::vector<int64_t> labels;
  if (all.empty()) return labels;
  for (const int64_t index : indices_) labels.push_back(all[static_cast<std::size_t>(index)]);
  return labels;
}

RepeatDataset::RepeatDataset(std::shared_ptr<const Dataset> dataset, int64_t times)
    : DatasetView(std::move(dataset)), times_(times) {
  if (times < 1)
    throw ConfigError(c10::str("[RepeatDataset] times is ", times, ", expected at least 1; set how often"));
  if (DatasetView::size() > std::numeric_limits<int64_t>::max() / times) {
    throw ConfigError(c10::str("[RepeatDataset] times is ", times, " for ", DatasetView::size(),
                               " samples, expected fewer than 2^63 samples in all; lower times"));
  }
}

Batch RepeatDataset::draw(const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws) const {
  check_indices("RepeatDataset", indices, size());
  std::vector<SampleDraw> turns = draws;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    turns[i].pass = draws[i].pass * times_ + indices[i] / DatasetView::size();
  }
  return viewed().draw(source_indices(indices), turns);
}

std::vector<int64_t> RepeatDataset::source_indices(const std::vector<int64_t>& indices) const {
  std::vector<int64_t> below;
  for (const int64_t index : indices) below.push_back(index % DatasetView::size());
  return below;
}

std::vector<int64_t> RepeatDataset::labels() const {
  const std::vector<int64_t> once = viewed().labels();
  std::vector<int64_t> labels;
  for (int64_t turn = 0; turn < times_; ++turn) labels.insert(labels.end(), once.begin(), once.end());
  return labels;
}

ConcatDataset::ConcatDataset(std::vector<std::shared_ptr<const Dataset>> datasets) : datasets_(std::move(datasets)) {
  require<ConfigError>(!datasets_.empty(), "[ConcatDataset] found no dataset, expected at least one; pass some");
  int64_t end = 0;
  for (const auto& dataset : datasets_) {
    require<ConfigError>(dataset != nullptr, "[ConcatDataset] found an empty pointer, expected datasets");
    dataset->check_fits(*datasets_.front());
    ends_.push_back(end += dataset->size());
  }
}

Batch ConcatDataset::draw(const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws) const {
  check_indices("ConcatDataset", indices, size());
  std::vector<Batch> samples;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto [part, number] = place_of(indices[i]);
    SampleDraw draw = draws[i];
    draw.seed = mixed_bits(mixed_bits(draw.seed) + part);  // samples of different parts draw different numbers
    samples.push_back(datasets_[part]->draw({number}, {draw}));
  }
  return indices.empty() ? datasets_.front()->draw({}, {}) : stacked(samples, indices);
}

std::pair<std::size_t, int64_t> ConcatDataset::place_of(int64_t index) const {
  const auto part = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  return {part, part == 0 ? index : index - ends_[part - 1]};
}

// Each part may be normalized in its own way.
Batch ConcatDataset::denormalized(const Batch& batch, const std::vector<int64_t>& indices) const {
  std::vector<Batch> samples;
  for (const int64_t index : indices) {
    const auto row = static_cast<int64_t>(samples.size());
    const auto [part, number] = place_of(index);
    const Batch sample = batch.mapped([row](const at::Tensor& tensor) { return tensor.narrow(0, row, 1); });
    samples.push_back(datasets_[part]->denormalized(sample, {number}));
  }
  return indices.empty() ? batch : stacked(samples, indices);
}

std::string ConcatDataset::sample_name(int64_t index) const {
  const auto [part, number] = place_of(index);
  return datasets_[part]->sample_name(number);
}

std::vector<int64_t> ConcatDataset::labels() const {
  std::vector<int64_t> labels;
  for (const auto& dataset : datasets_) {
    const std::vector<int64_t> more = dataset->labels();
    if (more.empty()) return {};
    labels.insert(labels.end(), more.begin(), more.end());
  }
  return labels;
}

bool ConcatDataset::in_memory() const {
  return std::all_of(datasets_.begin(), datasets_.end(), [](const auto& dataset) { return dataset->in_memory(); });
}

int64_t ConcatDataset::max_label() const {
  int64_t most = -1;
  for (const auto& dataset : datasets_) most = std::max(most, dataset->max_label());
  return most;
}

void ConcatDataset::check_fits(const Dataset& training) const {
  for (const auto& dataset : datasets_) dataset->check_fits(training);
}

}  // namespace duet
