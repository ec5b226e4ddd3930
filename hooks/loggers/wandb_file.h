#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include "hooks/loggers/protobuf_writer.h"
#include "io/file_io.h"

namespace duet {

// A new run-<id>.wandb: wandb's Record messages in LevelDB's log format (blocks of 32 KiB, each piece with its sum),
// after a header of wandb's own. What append() took is in the file when it returns; Error if it cannot be.
class WandbFile {
 public:
  explicit WandbFile(std::string path);

  // A Record whose field `kind` is `message`.
  void append(int kind, const ProtobufWriter& message);

  const std::string& path() const { return path_; }

 private:
  std::string framed(std::string_view record) const;
  void write(const std::string& bytes);

  std::string path_;
  file_io::FileWriter file_;
  uint64_t size_ = 0;
  int64_t records_ = 0;
};

}  // namespace duet
