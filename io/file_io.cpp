#include "io/file_io.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>
#include <system_error>
#include <utility>
#include <fcntl.h>
#include <ftw.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/log.h"

namespace duet::file_io {

namespace {

constexpr size_t kMaxTransfer = size_t{1} << 30;  // Linux moves at most 2 GiB per call

template <class Call>
auto retry(Call call) {
  while (true) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// Space for the whole file. File systems that cannot promise it are written to without the promise.
void reserve(int fd, const std::string& path, uint64_t bytes) {
  if (bytes == 0) return;
  int error = 0;
  do {
    error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL && error != ENOSYS) {
    throw IoError("cannot reserve " + std::to_string(bytes) + " bytes for", path, error);
  }
}

std::string parent_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

}  // namespace

IoError::IoError(const std::string& action, const std::string& path, int error)
    : std::runtime_error(action + " '" + one_line(path) + "': " + std::generic_category().message(error)) {}

Descriptor::Descriptor(const std::string& path, int flags, const char* action)
    : fd_(retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); })) {
  if (fd_ < 0) throw IoError(action, path, errno);
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void Descriptor::close(const std::string& path) {
  // Linux frees the descriptor whatever close() answers: never close it twice.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) throw IoError("cannot close", path, errno);
}

FileWriter::FileWriter(std::string path, uint64_t bytes)
    : path_(std::move(path)), file_(path_, O_WRONLY | O_CREAT | O_TRUNC, "cannot create") {
  reserve(file_.get(), path_, bytes);
}

void FileWriter::write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  for (size_t left = bytes; left > 0;) {
    const ssize_t written = retry([&] { return ::write(file_.get(), next, std::min(left, kMaxTransfer)); });
    if (written <= 0) {
      const int error = written == 0 ? ENOSPC : errno;
      take_back();
      throw IoError("cannot write", path_, error);
    }
    next += written;
    left -= static_cast<size_t>(written);
  }
  written_ += bytes;
}

void FileWriter::take_back() const {
  const auto end = static_cast<off_t>(written_);
  if (::ftruncate(file_.get(), end) == 0) static_cast<void>(::lseek(file_.get(), end, SEEK_SET));
}

void FileWriter::finish() {
  if (retry([&] { return ::fsync(file_.get()); }) != 0) throw IoError("cannot sync", path_, errno);
  file_.close(path_);
}

FileReader::FileReader(std::string path)
    // Without O_NONBLOCK the open of a pipe would wait for a writer for ever.
    : path_(std::move(path)), file_(path_, O_RDONLY | O_NONBLOCK, "cannot open") {
  struct stat status{};
  if (::fstat(file_.get(), &status) != 0) throw IoError("cannot look at", path_, errno);
  if (S_ISDIR(status.st_mode)) throw IoError("cannot read", path_, EISDIR);
  if (!S_ISREG(status.st_mode)) throw IoError("cannot read (not a regular file)", path_, EINVAL);
  size_ = static_cast<uint64_t>(status.st_size);
}

void FileReader::read(uint64_t offset, void* data, uint64_t bytes) const {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const size_t wanted = static_cast<size_t>(std::min<uint64_t>(bytes, kMaxTransfer));
    const ssize_t got = retry([&] { return ::pread(file_.get(), next, wanted, static_cast<off_t>(offset)); });
    if (got < 0) throw IoError("cannot read", path_, errno);
    if (got == 0) throw IoError("cannot read (the file became shorter)", path_, EIO);
    next += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
}

namespace {

void warn_of_no_locks(const std::string& folder, int error) {
  static std::mutex mutex;
  static auto* const told = new std::set<std::string>();
  const std::lock_guard lock(mutex);
  if (!told->insert(folder).second) return;
  log_warning("[FolderLock] the file system of '" + folder + "' cannot lock (" +
              std::generic_category().message(error) +
              "): nothing keeps a second process from saving there, so see to it that there is none");
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) : folder_(folder, O_RDONLY | O_DIRECTORY, "cannot open") {
  if (retry([&] { return ::flock(folder_.get(), LOCK_EX | LOCK_NB); }) == 0) return;
  if (errno == EWOULDBLOCK) throw IoError("cannot lock (another process or thread is saving there)", folder, errno);
  warn_of_no_locks(folder, errno);
}

// By hand: a forked child that holds a copy of the descriptor would keep the lock.
FolderLock::~FolderLock() { ::flock(folder_.get(), LOCK_UN); }

std::string read_text(const std::string& path, uint64_t max_bytes) {
  const FileReader file(path);
  if (file.size() > max_bytes)
    throw IoError("cannot read more than " + std::to_string(max_bytes) + " bytes of", path, EFBIG);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

void drop_from_cache(const std::string& path) {
  const Descriptor file(path, O_RDONLY, "cannot open");
  static_cast<void>(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED));
}

void sync_folder(const std::string& folder) {
  const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY, "cannot open");
  if (retry([&] { return ::fsync(descriptor.get()); }) == 0) return;
  // Some network file systems have no fsync for folders; they write names through at once.
  if (errno != EINVAL && errno != EOPNOTSUPP) throw IoError("cannot sync", folder, errno);
}

void create_folder(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0) {
    if (!S_ISDIR(status.st_mode)) throw IoError("cannot create a folder at", path, ENOTDIR);
    return;
  }
  const std::string parent = parent_of(path);
  if (parent != path) create_folder(parent);
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) throw IoError("cannot create folder", path, errno);
  sync_folder(parent);
}

void rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw IoError("cannot rename '" + from + "' to", to, errno);
}

// Not std::filesystem::remove_all: the LibTorch wheel exports a copy of it that calls a function which is not there,
// and a program that links LibTorch before libstdc++ gets that one.
void remove_tree(const std::string& path) {
  const auto remove_entry = [](const char* entry, const struct stat*, int, struct FTW*) { return ::remove(entry); };
  if (::nftw(path.c_str(), remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0) throw IoError("cannot remove", path, errno);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw IoError("cannot remove", path, errno);
}

std::string random_id() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", device());
    id += digits;
  }
  return id;
}

void replace_file(const std::string& path, uint64_t bytes, const std::function<void(FileWriter&)>& fill) {
  struct stat there{};
  const bool is_file = ::stat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode) || S_ISDIR(there.st_mode);
  if (!is_file) throw IoError("cannot replace (a device or pipe)", path, EINVAL);
  const std::string temporary = path + ".tmp." + random_id();
  try {
    FileWriter file(temporary, bytes);
    fill(file);
    file.finish();
    rename(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(parent_of(path));
}

void replace_file(const std::string& path, const std::string& text) {
  replace_file(path, text.size(), [&](FileWriter& file) { file.write(text.data(), text.size()); });
}

}  // namespace duet::file_io
