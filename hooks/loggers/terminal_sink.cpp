#include "hooks/loggers/terminal_sink.h"
#include <algorithm>
#include <cstdio>
#include <utility>
#include <unistd.h>
#include "base/log.h"

namespace duet {

TerminalSink::TerminalSink(bool progress) : progress_(progress && isatty(STDERR_FILENO) != 0) {}

TerminalSink::~TerminalSink() { clear(); }

void TerminalSink::write(const LogRecord& record) {
  if (record.line.empty()) return;
  if (record.kind == "progress") {
    draw(record.line);
    return;
  }
  clear();
  log_info(record.line);
}

void TerminalSink::draw(std::string text) {
  text.resize(std::min<std::size_t>(text.size(), 79));
  const std::size_t width = text.size();
  if (width < drawn_width_) text.append(drawn_width_ - width, ' ');
  // The cursor goes back to the start of the line, so that whoever logs next writes over the progress.
  std::fprintf(stderr, "%s\r", text.c_str());
  drawn_width_ = width;
}

void TerminalSink::clear() {
  if (drawn_width_ > 0) std::fprintf(stderr, "%*s\r", static_cast<int>(drawn_width_), "");
  drawn_width_ = 0;
}

}  // namespace duet
