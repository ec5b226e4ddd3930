#pragma once

#include <string>

namespace duet {

// A work_dir belongs to one run at a time: held by it, and let go of by the system when its process dies. Lies in the
// file `run.lock` of the folder, which stays and says nothing by being there.
class RunLock {
 public:
  // Throws ConfigError that names the process of the run that holds it, or if the folder cannot be written. A file
  // system without locks lets everybody in, with a warning.
  explicit RunLock(const std::string& work_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace duet
