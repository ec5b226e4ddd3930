#include "cli/scratch_folder.h"
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <c10/util/StringUtil.h>
#include <stdlib.h>
#include "base/error.h"
#include "base/log.h"

namespace duet {

ScratchFolder::ScratchFolder() {
  std::error_code failed;
  const std::filesystem::path root = std::filesystem::temp_directory_path(failed);
  path_ = (root / "duet-XXXXXX").string();
  if (failed || mkdtemp(path_.data()) == nullptr) {
    throw ConfigError(c10::str("[duet] cannot make a temporary folder '", path_, "': ",
                               failed ? failed.message() : std::strerror(errno), "; set TMPDIR to a writable folder"));
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code failed;
  std::filesystem::remove_all(path_, failed);
  if (failed) log_warning("cannot remove the temporary folder '" + path_ + "': " + failed.message());
}

}  // namespace duet
