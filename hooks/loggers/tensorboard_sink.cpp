#include "hooks/loggers/tensorboard_sink.h"
#include <array>
#include <cstdio>
#include <utility>
#include "base/error.h"
#include "hooks/loggers/event_file.h"
#include "io/png.h"

namespace duet {

namespace {

bool is_charted(const LogRecord& record) {
  for (const char* event : {"start", "stop", "error", "text", "image"}) {
    if (record.kind == event) return false;
  }
  return true;
}

// Strings of a charted record (an estimated time of arrival, say) are for the terminal: they would be a text per line.
void add_charts(const LogRecord& record, std::vector<std::string>& values) {
  for (const auto& [name, value] : record.values) {
    const std::string tag = record.kind + "/" + name;
    if (const auto* number = std::get_if<double>(&value))
      values.push_back(scalar_value(tag, static_cast<float>(*number)));
    if (const auto* count = std::get_if<int64_t>(&value))
      values.push_back(scalar_value(tag, static_cast<float>(*count)));
  }
}

std::string text_of(const LogValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* count = std::get_if<int64_t>(&value)) return std::to_string(*count);
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%.9g", std::get<double>(value));
  return digits.data();
}

// Texts under their own names; start, stop and error as one text with a list of what they say.
void add_texts(const LogRecord& record, std::vector<std::string>& values) {
  if (record.kind == "text") {
    for (const auto& [name, value] : record.values) values.push_back(text_value(name, text_of(value)));
    return;
  }
  std::string text = record.line;
  // Markdown wants an empty line before a list.
  if (!text.empty() && !record.values.empty()) text += "\n\n";
  for (const auto& [name, value] : record.values) text += "- " + name + ": " + text_of(value) + "\n";
  if (!text.empty()) values.push_back(text_value(record.kind, text));
}

void add_images(const LogRecord& record, std::vector<std::string>& values) {
  for (const LogImage& image : record.images) {
    const std::string png = encode_png(image.pixels);
    values.push_back(image_value(image.name, image.pixels.size(0), image.pixels.size(1), png));
  }
}

}  // namespace

TensorBoardSink::TensorBoardSink(std::string folder) : folder_(std::move(folder)) {
  try {
    file_io::create_folder(folder_);
  } catch (const file_io::IoError& error) {
    throw ConfigError(std::string("[TensorBoardSink] ") + error.what() +
                      ", expected a folder to write to; change work_dir");
  }
}

TensorBoardSink::~TensorBoardSink() = default;

void TensorBoardSink::write(const LogRecord& record) {
  if (!file_) file_ = std::make_unique<EventFile>(folder_);
  if (!session_started_ && (record.kind == "start" || record.kind == "text")) start_session(record);
  std::vector<std::string> values;
  if (is_charted(record)) {
    add_charts(record, values);
  } else {
    add_texts(record, values);
  }
  add_images(record, values);
  if (!values.empty()) file_->summary({record.step, record.wall_time}, values);
}

// TensorBoard forgets all events whose step is not below the one given. What was logged at the step that a run goes on
// from is still true, and results of an evaluation on its own take nothing back.
void TensorBoardSink::start_session(const LogRecord& first) {
  file_->session_start({goes_on(first) ? first.step + 1 : first.step, first.wall_time});
  session_started_ = true;
}

}  // namespace duet
