#include "data/detail/pictures.h"
#include <algorithm>
#include <iterator>
#include <system_error>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "io/image.h"

namespace duet {

namespace fs = std::filesystem;

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

namespace {

[[noreturn]] void fail_listing(const fs::path& folder, const std::string& why) {
  throw DataError("[ImageFolder] '" + one_line(folder.string()) + "' cannot be listed (" + why +
                  "), expected a folder that may be read; correct its permissions or links");
}

// Also what macOS adds to archives.
bool is_hidden(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  return name.front() == '.' || name == "__MACOSX";
}

// A link that leads nowhere, or back: a disk that is not mounted, a picture that was not fetched.
void check_there(const fs::directory_entry& entry) {
  std::error_code error;
  static_cast<void>(entry.status(error));
  if (!error) return;
  throw DataError("[ImageFolder] found '" + one_line(entry.path().string()) + "', which leads nowhere (" +
                  error.message() + "), expected a file or a folder; correct the link, or remove it");
}

}  // namespace

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::vector<fs::directory_entry> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (!is_hidden(*entry)) found.push_back(*entry);
  }
  if (error) fail_listing(folder, error.message());
  std::sort(found.begin(), found.end());
  for (const fs::directory_entry& entry : found) check_there(entry);
  return found;
}

bool is_folder(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.is_directory(ignored);
}

std::vector<std::string> PictureList::below(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  fs::path last = folder;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::follow_directory_symlink, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    last = entry->path();
    if (is_hidden(*entry)) {
      entry.disable_recursion_pending();
      continue;
    }
    check_there(*entry);
    if (is_folder(*entry)) continue;
    std::error_code ignored;
    if (entry->is_regular_file(ignored) && is_image_name(entry->path().string())) {
      found.push_back(entry->path().lexically_relative(folder).string());
    } else {
      leave_out(entry->path());
    }
  }
  if (error) fail_listing(last, error.message());
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> PictureList::folders_in(const std::string& root) {
  std::vector<std::string> names;
  for (const auto& entry : entries_of(root)) {
    if (is_folder(entry)) {
      names.push_back(entry.path().filename().string());
    } else if (is_image_name(entry.path().string())) {
      leave_out(entry.path());
    }
  }
  return names;
}

void PictureList::leave_out(const fs::path& path) {
  if (left_out_++ == 0) example_ = path.string();
}

void PictureList::warn() const {
  if (left_out_ == 0) return;
  log_warning(c10::str("[ImageFolder] ", left_out_, left_out_ == 1 ? " file is" : " files are", " left out, such as '",
                       one_line(example_),
                       "', expected regular files called .png, .jpg or .jpeg in the folders that are read; convert or "
                       "move them if they are pictures"));
}

}  // namespace duet
