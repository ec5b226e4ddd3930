#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace duet {

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
