#pragma once

#include <cstdint>
#include <filesystem>
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

// Without those that are hidden, sorted by name. Throws DataError for a folder that cannot be read.
std::vector<std::filesystem::directory_entry> entries_of(const std::filesystem::path& folder);
bool is_folder(const std::filesystem::directory_entry& entry);

// The pictures that a dataset lists, and what it leaves out.
class PictureList {
 public:
  // Every picture below the folder, sorted by its path within it. Links are followed.
  std::vector<std::string> below(const std::string& folder);
  // The names of the folders in it; pictures beside them are left out.
  std::vector<std::string> folders_in(const std::string& root);
  void warn() const;

 private:
  void leave_out(const std::filesystem::path& path);

  int64_t left_out_ = 0;
  std::string example_;
};

}  // namespace duet
