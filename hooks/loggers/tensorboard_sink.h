#pragma once

#include <memory>
#include <string>
#include "hooks/log_sink.h"

namespace duet {

class EventFile;

// Records as a TensorBoard event file. Numbers of train, val and test become charts under "kind/name" (float32, as
// TensorBoard stores them), pictures and the values of a text record go under their own names, and start, stop and
// error become texts. A run that goes on writes a new file that makes TensorBoard forget what the older ones say
// about steps from there on; an evaluation on its own leaves them as they are. Every record is in the file when write()
// returns.
class TensorBoardSink : public LogSink {
 public:
  // Creates the folder; ConfigError if that fails. The file comes with the first record.
  explicit TensorBoardSink(std::string folder);
  ~TensorBoardSink() override;

  // Error if the file cannot be written: a full disk, no permission.
  void write(const LogRecord& record) override;

 private:
  void start_session(const LogRecord& first);

  std::string folder_;
  std::unique_ptr<EventFile> file_;
  bool session_started_ = false;
};

}  // namespace duet
