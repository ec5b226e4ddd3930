#pragma once

#include <cstddef>
#include <string>
#include "hooks/log_sink.h"

namespace duet {

// A record's line in the log, and the progress of training on one line of stderr below, if that is a terminal.
class TerminalSink : public LogSink {
 public:
  explicit TerminalSink(bool progress = true);
  ~TerminalSink() override;

  void write(const LogRecord& record) override;
  bool takes_images() const override { return false; }
  bool shows_progress() const override { return progress_; }
  bool keeps_log_order() const override { return true; }

 private:
  void draw(std::string text);
  void clear();

  bool progress_;
  std::size_t drawn_width_ = 0;
};

}  // namespace duet
