#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>
#include "../../base/options.h"
#include "../../data/dataset.h"

namespace duet {

struct FashionMnistOptions {
  std::string root = "/usr/share/datasets/fashion-mnist";  // where Debian's dataset-fashion-mnist puts its files
  std::string split = "train";                             // or "test"
  std::string images, labels;                              // IDX files to read instead of those under root
  bool normalize = true;                                   // (x/255 - mean) / std; else x/255
  double mean = 0.2860, std = 0.3530;                      // of the training images of Fashion-MNIST
  int64_t num_classes = 10;                                // labels must lie in [0, num_classes)
  int64_t limit = 0;                                       // only the first samples; 0: all

  static const OptionFields& fields();
};

// Grey images and their classes from two IDX files, plain or gzip: Fashion-MNIST, MNIST or any set of that form.
// Yields "image" float32 [N, 1, H, W] and "target" int64 [N].
class FashionMnist : public Dataset {
 public:
  // Reads both files. Throws ConfigError for bad options; DataError naming file, value and index if a file is
  // missing or damaged, the counts differ, or a label is out of range.
  explicit FashionMnist(FashionMnistOptions options = {});

  int64_t size() const override { return static_cast<int64_t>(targets_.size()); }
  Batch get(const std::vector<int64_t>& indices) const override;
  bool in_memory() const override { return true; }
  Batch denormalized(const Batch& batch, const std::vector<int64_t>& indices) const override;
  std::vector<int64_t> labels() const override { return targets_; }
  int64_t max_label() const override;

 private:
  void read_labels(const std::string& path);

  FashionMnistOptions options_;
  at::Tensor images_;  // uint8 [N, H, W]
  std::vector<int64_t> targets_;
  std::array<float, 256> values_{};  // what each grey level becomes
};

}  // namespace duet
