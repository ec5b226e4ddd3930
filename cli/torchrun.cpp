#include "cli/torchrun.h"
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <unistd.h>
#include "base/error.h"

namespace duet {

namespace {

namespace fs = std::filesystem;

bool is_program(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

fs::path in_search_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty() && is_program(fs::path(folder) / name)) return fs::absolute(fs::path(folder) / name);
  }
  return {};
}

// A wheel lies in <environment>/lib/python3.x/site-packages/torch/lib, its programs in <environment>/bin.
fs::path beside_libtorch(const std::string& name) {
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &library) == 0) return {};
  std::error_code ignored;
  fs::path folder = fs::weakly_canonical(library.dli_fname, ignored).parent_path();
  for (int i = 0; i < 6 && folder.has_relative_path(); ++i, folder = folder.parent_path()) {
    if (is_program(folder / "bin" / name)) return folder / "bin" / name;
  }
  return {};
}

}  // namespace

std::string find_torchrun() {
  for (const fs::path& found : {in_search_path("torchrun"), beside_libtorch("torchrun")}) {
    if (!found.empty()) return found.string();
  }
  throw ConfigError(
      "[duet] found no torchrun, neither in PATH nor beside LibTorch, expected one to start the processes with; "
      "install "
      "torch for Python, or start them with srun or mpirun");
}

std::string path_of_program(const std::string& otherwise) {
  std::error_code failed;
  const fs::path path = fs::read_symlink("/proc/self/exe", failed);
  return failed ? otherwise : path.string();
}

}  // namespace duet
