#include "cli/zoo/fashion_mnist.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "data/transform.h"
#include "io/idx.h"

namespace duet {

const OptionFields& FashionMnistOptions::fields() {
  using O = FashionMnistOptions;
  return described<O>("FashionMnist", [](const auto& add) {
    add.about("Pictures of clothes in 10 classes: gives image float32 [N, 1, 28, 28], target int64 [N].");
    add("root", &O::root, "folder of the IDX files");
    add("split", &O::split, "which images").one_of({"train", "test"});
    add("images", &O::images, "IDX file to read instead of that under root");
    add("labels", &O::labels, "IDX file to read instead of that under root");
    add("normalize", &O::normalize, "(x - mean) / std");
    add("mean", &O::mean, "grey level in [0, 1]").expects("a finite number");
    add("std", &O::std, "standard deviation of the grey levels").in(above(0)).expects("a number above 0");
    add("num_classes", &O::num_classes, "labels lie below it").in(at_least(1));
    add("limit", &O::limit, "only the first samples; 0: all").in(at_least(0)).expects("0 (all) or a number of samples");
  });
}

namespace {

struct Files {
  std::string images, labels;
};

Files locate(const FashionMnistOptions& options) {
  const std::string prefix = options.root + (options.split == "train" ? "/train" : "/t10k");
  Files files{options.images, options.labels};
  if (files.images.empty() || files.labels.empty()) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(options.root, ignored)) {
      throw DataError(c10::str("[FashionMnist] found no folder '", options.root,
                               "', expected one with the IDX files of Fashion-MNIST; install Debian's package ",
                               "dataset-fashion-mnist, or set 'root'"));
    }
  }
  if (files.images.empty()) files.images = prefix + "-images-idx3-ubyte";
  if (files.labels.empty()) files.labels = prefix + "-labels-idx1-ubyte";
  return files;
}

}  // namespace

FashionMnist::FashionMnist(FashionMnistOptions options) : options_(std::move(options)) {
  check_options(options_);
  const Files files = locate(options_);
  images_ = read_idx(files.images);
  if (images_.dim() != 3 || images_.scalar_type() != at::kByte) {
    throw DataError(c10::str("[FashionMnist] images '", files.images, "': found ", images_.scalar_type(), " ",
                             images_.sizes(), ", expected uint8 [N, H, W]; name an idx3-ubyte file"));
  }
  read_labels(files.labels);
  if (images_.size(0) != size()) {
    throw DataError(c10::str("[FashionMnist] found ", images_.size(0), " images in '", files.images, "' and ", size(),
                             " labels in '", files.labels, "', expected as many; name two files of one split"));
  }
  require<DataError>(size() > 0, "[FashionMnist] images '" + files.images +
                                     "': found no sample, expected at least 1; name another file");
  if (options_.limit > 0 && options_.limit < size()) targets_.resize(static_cast<size_t>(options_.limit));

  // In float32 and in this order, as tensor code would compute it.
  const auto mean = static_cast<float>(options_.mean), std = static_cast<float>(options_.std);
  for (size_t level = 0; level < values_.size(); ++level) {
    const float scaled = static_cast<float>(level) / 255.0F;
    values_[level] = options_.normalize ? (scaled - mean) / std : scaled;
  }
}

void FashionMnist::read_labels(const std::string& path) {
  const at::Tensor labels = read_idx(path);
  if (labels.dim() != 1 || labels.is_floating_point()) {
    throw DataError(c10::str("[FashionMnist] labels '", path, "': found ", labels.scalar_type(), " ", labels.sizes(),
                             ", expected whole numbers [N]; name an idx1-ubyte file"));
  }
  const at::Tensor wide = labels.to(at::kLong);
  targets_.assign(wide.const_data_ptr<int64_t>(), wide.const_data_ptr<int64_t>() + wide.numel());
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (targets_[i] >= 0 && targets_[i] < options_.num_classes) continue;
    throw DataError(c10::str("[FashionMnist] labels '", path, "': found label ", targets_[i], " at index ", i,
                             ", expected 0 to ", options_.num_classes - 1, "; correct the file or 'num_classes'"));
  }
}

int64_t FashionMnist::max_label() const { return *std::max_element(targets_.begin(), targets_.end()); }

Batch FashionMnist::denormalized(const Batch& batch, const std::vector<int64_t>& /*indices*/) const {
  Batch undone = batch;
  if (options_.normalize) make_normalize({.mean = {options_.mean}, .std = {options_.std}})->undo_for_show(undone);
  return undone;
}

Batch FashionMnist::get(const std::vector<int64_t>& indices) const {
  check_indices("FashionMnist", indices, size());
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t height = images_.size(1), width = images_.size(2), pixels = height * width;
  const at::Tensor image = at::empty({count, 1, height, width}, at::TensorOptions(at::kFloat));
  const at::Tensor target = at::empty({count}, at::TensorOptions(at::kLong));
  const uint8_t* const levels = images_.const_data_ptr<uint8_t>();
  float* out = image.mutable_data_ptr<float>();
  int64_t* const targets = target.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = indices[static_cast<size_t>(i)];
    out = std::transform(levels + index * pixels, levels + (index + 1) * pixels, out,
                         [this](uint8_t level) { return values_[level]; });
    targets[i] = targets_[static_cast<size_t>(index)];
  }
  return {{"image", image}, {"target", target}};
}

}  // namespace duet
