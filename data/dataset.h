#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "../base/batch.h"
#include "../base/options.h"

namespace duet {

// What random numbers of a sample follow from, beside its index.
struct SampleDraw {
  uint64_t seed = 0;
  int64_t pass = 0;        // over the data, from 0
  int64_t occurrence = 0;  // how often that pass has drawn the same sample before
};

class Dataset;

// What a dataset is read for.
struct DatasetUse {
  const Dataset* training = nullptr;   // that the model is trained with, whose classes and scales hold; null: this one
  std::vector<std::string> classes{};  // names that the model was trained with, by number; empty: those of `training`
  std::string encoding{};              // Dataset::encoding() that it was trained with; empty: that of `training`
  bool predicts = false;               // targets may be missing
  bool reads = true;                   // false: `encoding` is all that is asked for, so that files may be missing
};

// Indexed samples. get() may be called from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // The samples at `indices` stacked to one batch on the CPU. Throws DataError that names the bad sample.
  virtual Batch get(const std::vector<int64_t>& indices) const = 0;
  // Likewise, for a dataset whose samples are drawn anew each time (random crops and the like); `draws`: one for each
  // index. Loaders call this.
  virtual Batch draw(const std::vector<int64_t>& indices, const std::vector<SampleDraw>& /*draws*/) const {
    return get(indices);
  }

  // Whether reading waits for nothing but the processor: a loader without workers then reads where next() is called, as
  // there is no wait to break off.
  virtual bool in_memory() const { return false; }
  // The class of each sample, where samples have one as "target"; empty if not. By default read from all samples.
  virtual std::vector<int64_t> labels() const;
  // The largest label that a sample may have; -1 if that is not known.
  virtual int64_t max_label() const { return -1; }
  // What the classes are called, by number; empty: they have no names, or there are no classes.
  virtual std::vector<std::string> class_names() const { return {}; }
  // What was found out from the samples for the model's numbers to mean something: columns, means and categories of a
  // table, the characters of a text. Checkpoints keep this text, and DatasetUse gives it back. Empty: nothing was.
  virtual std::string encoding() const { return ""; }
  // `batch`, which get() or draw() gave for `indices`, for display: pictures with the values that they had before they
  // were normalized.
  virtual Batch denormalized(const Batch& batch, const std::vector<int64_t>& /*indices*/) const { return batch; }
  // What a sample is called where it comes from: the path of a file within its folder. Empty: it has no name.
  virtual std::string sample_name(int64_t /*index*/) const { return ""; }
  // Throws ConfigError if its numbers mean something else than those of the data that a model was trained with: other
  // classes, characters or scales.
  virtual void check_fits(const Dataset& /*training*/) const {}
  // The dataset that was read: itself, unless it is a view of another one.
  virtual const Dataset& source() const { return *this; }

 protected:
  // Throws DataError unless all of `indices` lie in [0, size). `who` is the dataset's class.
  static void check_indices(const char* who, const std::vector<int64_t>& indices, int64_t size);
};

// Samples that lie in memory: row i of every tensor is sample i.
// Yields each tensor's rows under its name, [N, ...], dtype unchanged.
class TensorDataset : public Dataset {
 public:
  // Tensors of any dtype and device, kept on the CPU without gradient. Throws DataError naming the tensor unless there
  // is at least one, names differ, and all have the same number of rows, which is not 0.
  explicit TensorDataset(const NamedTensors& tensors);

  // The tensors of a safetensors file. Throws DataError naming the file.
  static TensorDataset from_file(const std::string& path);

  int64_t size() const override { return tensors_.front().second.size(0); }
  Batch get(const std::vector<int64_t>& indices) const override;
  bool in_memory() const override { return true; }

 private:
  NamedTensors tensors_;
};

struct TextDatasetOptions {
  std::string path = "/usr/share/common-licenses/GPL-3";
  std::string split = "train";  // the file without its last val_fraction; "val": that part; "all"
  double val_fraction = 0.1;    // in [0, 1)
  int64_t context = 64;         // characters per sample
  int64_t stride = 0;           // characters between the starts of two samples; 0: context

  static const OptionFields& fields();
};

// Windows of a text file, one token per byte. Yields "input" int64 [N, context] and "target" int64 [N, context],
// which is the input one character later. Tokens number the distinct bytes of the whole file in their order, so that
// all splits share one vocabulary: that of the training data where there is such.
class TextDataset : public Dataset {
 public:
  // Throws ConfigError for bad options and a byte that the training data lacks, DataError if the file cannot be read or
  // the split is shorter than one sample.
  explicit TextDataset(TextDatasetOptions options = {}, const DatasetUse& use = {});

  int64_t size() const override { return size_; }
  Batch get(const std::vector<int64_t>& indices) const override;
  bool in_memory() const override { return true; }
  std::string encoding() const override;
  void check_fits(const Dataset& training) const override;

  int64_t context() const { return options_.context; }  // characters per sample
  int64_t vocab_size() const { return static_cast<int64_t>(vocabulary_.size()); }
  const std::string& vocabulary() const { return vocabulary_; }  // the byte of each token
  // Tokens of `text`; throws DataError naming the first byte that is not in the vocabulary.
  std::vector<int64_t> encode(std::string_view text) const;
  // Text of `tokens`; throws DataError naming the first that is not in [0, vocab_size()).
  std::string decode(const std::vector<int64_t>& tokens) const;

 private:
  void number(std::string vocabulary);
  void read_split(const std::string& text);

  TextDatasetOptions options_;
  bool is_kept_ = false;  // the vocabulary is that of a checkpoint
  std::string vocabulary_;
  std::array<int16_t, 256> token_of_{};  // the token of each byte, -1 for none
  std::vector<uint8_t> tokens_;          // of the split; a byte is enough for at most 256 tokens
  int64_t size_ = 0;
};

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
    return dataset_->draw(source_indices(indices), draws);
  }
  bool in_memory() const override { return dataset_->in_memory(); }
  std::vector<int64_t> labels() const override { return dataset_->labels(); }
  int64_t max_label() const override { return dataset_->max_label(); }
  std::vector<std::string> class_names() const override { return dataset_->class_names(); }
  std::string encoding() const override { return dataset_->encoding(); }
  Batch denormalized(const Batch& batch, const std::vector<int64_t>& indices) const override {
    return dataset_->denormalized(batch, source_indices(indices));
  }
  std::string sample_name(int64_t index) const override {
    return dataset_->sample_name(source_indices({index}).front());
  }
  void check_fits(const Dataset& training) const override { dataset_->check_fits(training); }
  const Dataset& source() const override { return dataset_->source(); }

 protected:
  const Dataset& viewed() const { return *dataset_; }
  // Maps indices of this view to those of the dataset below it.
  virtual std::vector<int64_t> source_indices(const std::vector<int64_t>& indices) const { return indices; }

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
  std::vector<int64_t> source_indices(const std::vector<int64_t>& indices) const override;

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
  std::vector<int64_t> source_indices(const std::vector<int64_t>& indices) const override;

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
  Batch denormalized(const Batch& batch, const std::vector<int64_t>& indices) const override;
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
