#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "../base/options.h"
#include "dataset.h"

namespace duet {

struct CsvTable;
class MaskLabels;

struct ImageFolderOptions {
  std::string root;                     // a folder for each class; with masks or a manifest the pictures themselves
  std::string masks;                    // PNG masks called like the pictures below root; empty: classes
  std::string manifest;                 // CSV with the columns image and target (a class, or a mask's path); from root
  std::vector<std::string> classes;     // in the order of their numbers; empty: the folders' names, sorted
  std::vector<int64_t> mask_values;     // of class 0, 1, ... in masks; empty: each value is its class
  std::string task = "classification";  // or "regression": the targets of a manifest are numbers
  int64_t channels = 3;                 // 3: RGB, 1: grey
  std::string split = "all";            // or "train", "val": parts drawn by split_seed
  double val_fraction = 0.2;
  int64_t split_seed = 0;
  int64_t limit = 0;  // only so many samples, of all classes alike; 0: all

  static const OptionFields& fields();
};

// Pictures (PNG, JPEG) in a folder per class, or with a mask each. Read from disk as they are asked for.
// Yields "image" float32 [N, channels, H, W] in [0, 1], and "target": int64 [N], numbers float32 [N], or the mask int64
// [N, H, W], whose label 255 is ignored unless mask_values name it. Pictures lie as they are stored: an orientation in
// EXIF is not applied. Pictures of a batch have one size: resize them by a transform where files differ. To predict
// (DatasetUse::predicts), pictures may lie in any folders, and a manifest needs no targets: then there is no "target".
class ImageFolder : public Dataset {
 public:
  // Lists the files. Throws ConfigError for bad options; DataError for a folder without pictures or classes, a picture
  // without its mask, a manifest's line that names no file, masks of black and white without mask_values. Warns of
  // files that are left out, as they are no pictures that it reads.
  explicit ImageFolder(ImageFolderOptions options, const DatasetUse& use = {});

  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  Batch get(const std::vector<int64_t>& indices) const override;
  std::vector<int64_t> labels() const override;
  int64_t max_label() const override { return static_cast<int64_t>(classes_.size()) - 1; }
  std::vector<std::string> class_names() const override { return classes_; }
  std::string sample_name(int64_t index) const override;
  void check_fits(const Dataset& training) const override;

  const std::vector<std::string>& classes() const { return classes_; }  // empty with masks, unless they are told
  const std::string& path(int64_t index) const { return samples_.at(static_cast<std::size_t>(index)).image; }

 private:
  struct Sample {
    std::string image, mask;
    int64_t label = 0;
    float number = 0;  // to predict
  };
  void list_samples(bool predicts);
  void check_masks() const;
  void list_class_folders();
  void list_pictures();
  void list_manifest(bool predicts);
  void choose_samples();
  bool has_class_folders() const;
  bool has_numbers() const { return options_.task == "regression"; }
  int64_t label_of(const std::string& name, const std::string& where) const;
  std::pair<at::Tensor, at::Tensor> read(const Sample& sample) const;

  ImageFolderOptions options_;
  std::shared_ptr<const MaskLabels> mask_labels_;
  std::vector<std::string> classes_;
  std::vector<Sample> samples_;
  bool has_targets_ = true;
};

struct CsvOptions {
  std::string path;
  std::vector<std::string> target;       // the column to predict, or several of numbers; empty: none
  std::vector<std::string> features;     // columns to predict from; empty: all others
  std::string handle_unknown = "error";  // or "ignore": a category that no training row has is all zeros
  std::vector<std::string> categorical;  // columns whose values are categories, though they may look like numbers
  std::string weight;                    // the column of the rows' weights, no feature then; empty: none
  std::string separator = ",";
  std::string task = "auto";  // classification, regression; auto: numbers with fractions or many values are regression
  bool standardize = true;    // numbers to mean 0 and standard deviation 1, by the rows that are trained on
  std::string fit_on;         // the file whose rows give means, deviations and categories; empty: path
  std::string split = "all";  // or "train", "val"
  double val_fraction = 0.2;
  int64_t split_seed = 0;

  static const OptionFields& fields();
};

// A table with a line of column names. A column of numbers gives one value, one of texts a value of 0 or 1 for each of
// its categories, sorted: numbers by their value, then texts.
// Yields "input" float32 [N, values], and "target": int64 [N] (a text's place among the sorted ones), float32 [N], or
// float32 [N, targets] of several; with a column of weights "weight" float32 [N]. Columns, means, deviations,
// categories and classes are those of the training data (DatasetUse::training) where there is such. To predict, target
// columns may be missing or empty: then there is no "target".
class CsvDataset : public Dataset {
 public:
  // Throws ConfigError for bad options; DataError naming file, line and column for a missing or unknown value, or a
  // text among numbers; DataError for a column with a text of its own in most rows, or more than 1000 of them.
  explicit CsvDataset(CsvOptions options, const DatasetUse& use = {});

  int64_t size() const override { return input_.size(0); }
  Batch get(const std::vector<int64_t>& indices) const override;
  bool in_memory() const override { return true; }
  int64_t max_label() const override { return encoding_.is_class ? encoding_.class_count - 1 : -1; }
  std::vector<std::string> class_names() const override;
  std::string encoding() const override;
  void check_fits(const Dataset& training) const override;

  int64_t values() const { return input_.size(1); }                              // of a sample
  const std::vector<std::string>& classes() const { return encoding_.classes; }  // empty: they are 0, 1, ...

 private:
  struct Column {
    std::string name;
    std::vector<std::string> categories{};  // sorted; empty: numbers
    double mean = 0, deviation = 1;
  };
  struct Encoding {
    std::vector<Column> features{};
    std::vector<std::string> targets{};
    std::vector<std::string> classes{};  // sorted
    bool is_class = false;
    int64_t class_count = 0;
    std::vector<std::string> names() const;                      // of the features
    std::string text() const;                                    // for a checkpoint
    static std::optional<Encoding> of(const std::string& text);  // nothing: it is of no table
  };
  class Fit;
  void adopt(const Encoding& training);
  int64_t width() const;
  void require_encoding(const Encoding& expected, const std::string& whose) const;
  bool has_targets(const CsvTable& table, const std::vector<int64_t>& rows, bool predicts) const;
  void read_inputs(const CsvTable& table, const std::vector<int64_t>& rows);
  void read_targets(const CsvTable& table, const std::vector<int64_t>& rows);

  CsvOptions options_;
  Encoding encoding_;
  bool is_kept_ = false;  // the encoding is that of a checkpoint
  at::Tensor input_, target_, weight_;
};

}  // namespace duet
