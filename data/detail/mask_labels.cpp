#include "data/detail/mask_labels.h"
#include <algorithm>
#include <iterator>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "io/image.h"

namespace duet {

namespace {

constexpr int64_t kIgnored = 255;
constexpr int64_t kValues = int64_t{1} << 16;  // of a PNG with 16 bits

}  // namespace

MaskLabels::MaskLabels(const std::vector<int64_t>& values) : values_(values) {
  if (values_.empty()) return;
  class_of_ = at::full({kValues}, -1, at::kLong);
  int64_t* const class_of = class_of_.mutable_data_ptr<int64_t>();
  class_of[kIgnored] = kIgnored;
  for (std::size_t i = 0; i < values_.size(); ++i) class_of[values_[i]] = static_cast<int64_t>(i);
}

at::Tensor MaskLabels::classes(const at::Tensor& pixels, const std::string& path) const {
  if (values_.empty()) return pixels;
  const at::Tensor classes = class_of_.index_select(0, pixels.flatten()).view(pixels.sizes());
  const at::Tensor unknown = classes.lt(0);
  if (!unknown.any().item<bool>()) return classes;
  throw DataError(c10::str("[ImageFolder] mask '", path, "' holds ", pixels.masked_select(unknown)[0].item<int64_t>(),
                           ", expected one of mask_values: ", values_,
                           ", or 255, which is ignored; add it there, or correct the mask"));
}

void check_classes(const at::Tensor& mask, const std::string& path, const std::vector<std::string>& names) {
  const at::Tensor classes = mask.masked_select(mask.ne(kIgnored));
  const int64_t largest = classes.numel() == 0 ? -1 : classes.max().item<int64_t>();
  if (largest < std::ssize(names)) return;
  throw DataError(c10::str("[ImageFolder] mask '", path, "' holds class ", largest, ", expected 0 to ",
                           names.size() - 1, " (", join(names), ") or 255, which is ignored; name it in classes, ",
                           "or leave them out"));
}

void check_not_black_and_white(const std::vector<std::string>& masks) {
  constexpr std::size_t kMost = 32;
  const std::size_t looked = std::min(masks.size(), kMost);
  bool any_white = false;
  for (std::size_t i = 0; i < looked; ++i) {
    const at::Tensor pixels = read_mask(masks[i * masks.size() / looked]);
    const at::Tensor white = pixels.eq(kIgnored);
    if (!white.logical_or(pixels.eq(0)).all().item<bool>()) return;
    any_white = any_white || white.any().item<bool>();
  }
  if (!any_white) return;
  throw DataError(c10::str("[ImageFolder] found no values but 0 and 255 in ", looked, " masks such as '", masks.front(),
                           "', expected classes 0, 1, ..., as 255 is ignored; set mask_values: [0, 255] if 255 is ",
                           "class 1, or mask_values: [0, 1] if it is to be ignored"));
}

}  // namespace duet
