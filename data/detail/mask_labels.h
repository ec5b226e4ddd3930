#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>

namespace duet {

// The classes of a mask's pixels, by the values that its file holds.
class MaskLabels {
 public:
  // `values`: of class 0, 1, ...; none: each value is its class. 255 is ignored unless it is named.
  explicit MaskLabels(const std::vector<int64_t>& values);

  // int64 of the shape of `pixels`. Throws DataError for a value that is none of them.
  at::Tensor classes(const at::Tensor& pixels, const std::string& path) const;

 private:
  std::vector<int64_t> values_;
  at::Tensor class_of_;  // by value; -1: none
};

// Throws DataError for a class of a mask that has no name, 255 apart.
void check_classes(const at::Tensor& mask, const std::string& path, const std::vector<std::string>& names);

// Throws DataError if these masks hold no value but 0 and 255: pictures of black and white, whose white would be
// ignored. Reads until it finds another value, at most 32 of them.
void check_not_black_and_white(const std::vector<std::string>& masks);

}  // namespace duet
