#pragma once

#include <string>

namespace duet {

// Makes the folder, and those above it. Throws ConfigError that ends with `way_out` if that fails.
void make_folder(const std::string& path, const std::string& way_out = "change work_dir");

// A work_dir belongs to one run at a time, the folder of a sweep to one sweep: held by it, and let go of by the system
// when its process dies. Lies in the file `run.lock` or `sweep.lock` of the folder, which stays and says nothing by
// being there.
class RunLock {
 public:
  // Throws ConfigError that names the process of the run that holds it, or if the folder cannot be written. A file
  // system without locks lets everybody in, with a warning. `what`: "run" or "sweep".
  explicit RunLock(const std::string& work_dir, const char* what = "run");
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Before the run writes there: if somebody has removed or replaced the folder since, with its lock, takes the lock of
  // the one that is there now, with a warning. Throws ConfigError as above: another run may have begun there.
  void renew();

 private:
  std::string path() const;
  int take() const;

  std::string work_dir_;
  const char* what_;
  int file_;
};

// A folder of its own below the system's folder for temporary files (TMPDIR), removed with all in it.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace duet
