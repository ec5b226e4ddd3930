#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include "dataset.h"

namespace duet {

// The samples of another dataset; what a view changes, it overrides.
class DatasetView : public Dataset {
 public:
  // Throws ConfigError for null.
  explicit DatasetView(std::shared_ptr<const Dataset> dataset);

  int64_t size() const override { return dataset_->size(); }
  Batch get(const std::vector<int64_t>& indices) const override {
    return draw(indices, std::vector<SampleDraw>(indices.size()));
  }
  Batch draw(const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws) const override {
    return dataset_->draw(below(indices), draws);
  }
  bool in_memory() const override { return dataset_->in_memory(); }
  std::vector<int64_t> labels() const override { return dataset_->labels(); }
  int64_t max_label() const override { return dataset_->max_label(); }
  std::vector<std::string> class_names() const override { return dataset_->class_names(); }
  std::string encoding() const override { return dataset_->encoding(); }
  Batch shown(const Batch& batch, const std::vector<int64_t>& indices) const override {
    return dataset_->shown(batch, below(indices));
  }
  std::string sample_name(int64_t index) const override { return dataset_->sample_name(below({index}).front()); }
  void check_fits(const Dataset& training) const override { dataset_->check_fits(training); }
  const Dataset& source() const override { return dataset_->source(); }

 protected:
  const Dataset& viewed() const { return *dataset_; }
  // What these samples are called in the other dataset.
  virtual std::vector<int64_t> below(const std::vector<int64_t>& indices) const { return indices; }

 private:
  std::shared_ptr<const Dataset> dataset_;
};

// Those of `indices`, in their order.
class SubsetDataset : public DatasetView {
 public:
  // Throws DataError for an index outside of the dataset, or none at all.
  SubsetDataset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> indices);

  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  std::vector<int64_t> labels() const override;

 private:
  std::vector<int64_t> below(const std::vector<int64_t>& indices) const override;

  std::vector<int64_t> indices_;
};

// All of them several times in a pass; random transforms below it draw anew each time.
class RepeatDataset : public DatasetView {
 public:
  // Throws ConfigError for fewer than 1 time, or for more samples than an index counts.
  RepeatDataset(std::shared_ptr<const Dataset> dataset, int64_t times);

  int64_t size() const override { return DatasetView::size() * times_; }
  Batch draw(const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws) const override;
  std::vector<int64_t> labels() const override;

 private:
  std::vector<int64_t> below(const std::vector<int64_t>& indices) const override;

  int64_t times_;
};

// The samples of several datasets, one after the other. All give tensors of the same names, dtypes and shapes.
class ConcatDataset : public Dataset {
 public:
  // Throws ConfigError for none, and as check_fits() for one whose numbers mean something else than the first one's.
  // A batch whose samples do not fit together is a DataError.
  explicit ConcatDataset(std::vector<std::shared_ptr<const Dataset>> datasets);

  int64_t size() const override { return ends_.back(); }
  Batch get(const std::vector<int64_t>& indices) const override {
    return draw(indices, std::vector<SampleDraw>(indices.size()));
  }
  Batch draw(const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws) const override;
  bool in_memory() const override;
  std::vector<int64_t> labels() const override;
  int64_t max_label() const override;
  std::vector<std::string> class_names() const override { return datasets_.front()->class_names(); }
  std::string encoding() const override { return datasets_.front()->encoding(); }
  Batch shown(const Batch& batch, const std::vector<int64_t>& indices) const override;
  std::string sample_name(int64_t index) const override;
  void check_fits(const Dataset& training) const override;
  const Dataset& source() const override { return datasets_.front()->source(); }

 private:
  // Which of the datasets, and the number there.
  std::pair<std::size_t, int64_t> place_of(int64_t index) const;

  std::vector<std::shared_ptr<const Dataset>> datasets_;
  std::vector<int64_t> ends_;  // one past the last index of each
};

}  // namespace duet
