#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <c10/util/StringUtil.h>

namespace duet {

// What is wrong with a file that is being read, and what to do about it. Thrown by parsers that see only bytes; the
// function that knows the file's name makes an error of it.
struct MalformedFile {
  std::string what;
  std::string way_out = "write or download the file again";
};

// Throws MalformedFile of the parts put together if `holds` is false.
template <class... Parts>
void expect_file(bool holds, const Parts&... what) {
  if (!holds) throw MalformedFile{c10::str(what...)};
}

}  // namespace duet

// Durable files: every call's result is looked at, nothing is buffered in user space.
namespace duet::file_io {

// A call that the system refused: what was tried, on which path, and the system's reason. Whoever calls these functions
// turns it into an error of its own.
class IoError : public std::runtime_error {
 public:
  IoError(const std::string& action, const std::string& path, int error);
};

// An open file descriptor; closed when it goes, as often as exceptions want.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, const char* action);
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  void close(const std::string& path);

 private:
  int fd_ = -1;
};

// A new file. Space for `bytes` is taken at once, so that a full disk shows before anything is written.
class FileWriter {
 public:
  FileWriter(std::string path, uint64_t bytes);

  // All of them, or IoError; the file then ends where it ended before.
  void write(const void* data, size_t bytes);
  // Bytes are on the disk, and the file is closed, once this returned.
  void finish();

 private:
  void take_back() const;

  std::string path_;
  Descriptor file_;
  uint64_t written_ = 0;
};

// A regular file to read from.
class FileReader {
 public:
  explicit FileReader(std::string path);

  uint64_t size() const { return size_; }
  // All `bytes` from `offset` on, or IoError.
  void read(uint64_t offset, void* data, uint64_t bytes) const;

 private:
  std::string path_;
  Descriptor file_;
  uint64_t size_ = 0;
};

// Held by the one who writes into a folder; the system lets go of it when a process dies. IoError if another
// holds it. A file system that cannot lock (some network ones) lets everybody in, and a warning says so once.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();

 private:
  Descriptor folder_;
};

// All of a regular file: neither a device without end nor a pipe that nobody writes to.
std::string read_text(const std::string& path, uint64_t max_bytes);
// So that the next read comes from the disk, where the system takes such advice. Of a file that is synced.
void drop_from_cache(const std::string& path);
// Makes what was created, renamed or deleted in `folder` last through a power failure.
void sync_folder(const std::string& folder);
// Creates the folder and those above it, lastingly. One that exists is fine.
void create_folder(const std::string& path);
void rename(const std::string& from, const std::string& to);
// Deletes a folder and all in it.
void remove_tree(const std::string& path);
// 32 hex digits that no other process or machine uses.
std::string random_id();
// Deletes a file, if it is there.
void remove_file(const std::string& path);
// Writes "path.tmp.<id>" with `fill` and renames it: `path` holds all of the new bytes or all of the old ones.
void replace_file(const std::string& path, uint64_t bytes, const std::function<void(FileWriter&)>& fill);
void replace_file(const std::string& path, const std::string& text);

}  // namespace duet::file_io
