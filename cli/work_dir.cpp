#include "cli/work_dir.h"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/detail/concat_text.h"
#include "base/error.h"
#include "base/log.h"

namespace duet {

namespace {

// " (process 1234)"; empty if the file does not say.
std::string holder(int file) {
  char text[32] = {};
  const bool is_read = ::pread(file, text, sizeof text - 1, 0) > 0;
  const int process = is_read ? std::atoi(text) : 0;
  return process <= 0 ? std::string() : c10::str(" (process ", process, ")");
}

// For the message of whoever comes next; without it that message names no process.
void write_holder(int file) {
  const std::string text = concat_text(::getpid(), "\n");
  if (::ftruncate(file, 0) != 0 || ::pwrite(file, text.data(), text.size(), 0) < 0) {
    log_warning(std::string("[duet] the lock file does not name this process: ") + std::strerror(errno));
  }
}

// By hand: a forked child that holds a copy of the descriptor would keep the lock.
void let_go(int file) {
  ::flock(file, LOCK_UN);
  ::close(file);
}

}  // namespace

void make_folder(const std::string& path, const std::string& way_out) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (!failed && ::access(path.c_str(), W_OK) != 0) failed = std::make_error_code(static_cast<std::errc>(errno));
  if (failed) {
    throw ConfigError("[duet] cannot write '" + path + "' (" + failed.message() + "), expected a writable folder; " +
                      way_out);
  }
}

RunLock::RunLock(const std::string& work_dir, const char* what) : work_dir_(work_dir), what_(what), file_(take()) {}

RunLock::~RunLock() { let_go(file_); }

void RunLock::renew() {
  struct stat held{}, there{};
  const bool is_there = ::fstat(file_, &held) == 0 && ::stat(path().c_str(), &there) == 0;
  if (is_there && held.st_dev == there.st_dev && held.st_ino == there.st_ino) return;
  make_folder(work_dir_);
  let_go(std::exchange(file_, take()));
  log_warning("[duet] the lock of this run is gone from '" + work_dir_ +
              "'. If the folder was removed or replaced, the " +
              "run's log, config and earlier checkpoints are gone with it; what it saves goes there from now on");
}

std::string RunLock::path() const { return work_dir_ + "/" + what_ + ".lock"; }

int RunLock::take() const {
  const int file = ::open(path().c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);  // it writes there
  if (file < 0) {
    throw ConfigError(c10::str("[duet] cannot write '", path(), "' (", std::strerror(errno),
                               "), expected a writable folder; change work_dir"));
  }
  int result = 0;
  do {
    result = ::flock(file, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    write_holder(file);
    return file;
  }
  if (errno != EWOULDBLOCK) {
    log_warning(c10::str("[duet] '", work_dir_, "' is on a file system without locks (", std::strerror(errno),
                         "): see to it yourself that no second run writes there"));
    return file;
  }
  const std::string other = holder(file);
  ::close(file);
  throw ConfigError(c10::str("[duet] found a ", what_, other, " that is at work in '", work_dir_,
                             "', expected none; wait for it, stop it, or choose another work_dir"));
}

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
