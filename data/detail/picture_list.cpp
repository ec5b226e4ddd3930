#include "data/detail/picture_list.h"
#include <algorithm>
#include <system_error>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "io/image.h"

namespace duet {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail_listing(const fs::path& folder, const std::string& why) {
  throw DataError("[ImageFolder] '" + one_line(folder.string()) + "' cannot be listed (" + why +
                  "), expected a folder that may be read; correct its permissions or links");
}

bool is_hidden(const fs::directory_entry& entry) { return entry.path().filename().string().front() == '.'; }

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
