#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>
#include <unistd.h>
#include "hooks/detail/shared.h"
#include "hooks/loggers/encoding.h"
#include "hooks/loggers/sinks.h"
#include "io/file_io.h"
#include "io/png.h"
#include "io/read_file.h"

namespace duet {

namespace {

constexpr const char* kSink = "TensorBoardSink";

// Fields and constants of tensorboard/compat/proto/*.proto, by message.
enum { kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5, kEventSessionLog = 7 };
enum { kSessionStatus = 1, kSessionStart = 1 };
enum { kValueTag = 1, kValueNumber = 2, kValueImage = 4, kValueHistogram = 5, kValueTensor = 8, kValueMetadata = 9 };
enum { kImageHeight = 1, kImageWidth = 2, kImageColorspace = 3, kImageEncoded = 4, kImageRgb = 3 };
enum { kHistogramMin = 1, kHistogramMax, kHistogramCount, kHistogramSum, kHistogramSquares, kHistogramLimits };
enum { kHistogramBuckets = 7 };
enum { kTensorDtype = 1, kTensorShape = 2, kTensorStrings = 8, kTensorIsString = 7 };
enum { kMetadataPlugin = 1, kPluginName = 1, kMetadataDataClass = 4, kMetadataIsTensor = 2 };

// A sum of bytes that hold sums would be weak: the format turns each by 15 bits and adds a constant.
std::string masked_sum(std::string_view bytes) {
  const uint32_t sum = crc32c(bytes);
  return little_endian((sum >> 15 | sum << 17) + 0xa282ead8U, 4);
}

// The time in an event file's name, or 0 for other files.
long long time_in(const std::filesystem::path& path) {
  long long seconds = 0;
  return std::sscanf(path.filename().c_str(), "events.out.tfevents.%10lld.", &seconds) == 1 ? seconds : 0;
}

// TensorBoard reads a folder's files in the order of their names: this one after those there.
std::string next_path(const std::string& folder) {
  static std::atomic<int> files{0};
  long long seconds = std::time(nullptr);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    seconds = std::max(seconds, time_in(entry.path()) + 1);
  }
  const std::string host = host_name();
  std::array<char, 16> time{};
  std::snprintf(time.data(), time.size(), "%010lld", seconds);
  return folder + "/events.out.tfevents." + time.data() + "." + (host.empty() ? "unknown" : host) + "." +
         std::to_string(getpid()) + "." + std::to_string(files++);
}

// Values of a summary.
class Summary {
 public:
  bool empty() const { return message_.data().empty(); }
  const ProtobufWriter& message() const { return message_; }

  void add(const std::string& tag, double number) {
    const auto value = static_cast<float>(number);
    put(ProtobufWriter().text(kValueTag, tag).float32(kValueNumber, value));
  }
  // A tensor without dimensions: the text plugin shows it as Markdown, and one with them as a table.
  void add(const std::string& tag, const std::string& text) {
    ProtobufWriter string;
    string.integer(kTensorDtype, kTensorIsString).message(kTensorShape, {}).text(kTensorStrings, text);
    ProtobufWriter plugin;
    plugin.message(kMetadataPlugin, ProtobufWriter().text(kPluginName, "text"))
        .integer(kMetadataDataClass, kMetadataIsTensor);
    put(ProtobufWriter().text(kValueTag, tag).message(kValueTensor, string).message(kValueMetadata, plugin));
  }
  void add(const LogImage& shown) {
    ProtobufWriter picture;
    picture.integer(kImageHeight, shown.pixels.size(0)).integer(kImageWidth, shown.pixels.size(1));
    picture.integer(kImageColorspace, kImageRgb).bytes(kImageEncoded, encode_png(shown.pixels));
    put(ProtobufWriter().text(kValueTag, shown.name).message(kValueImage, picture));
  }
  // Each bucket by its upper end.
  void add(const std::string& tag, const Histogram& made) {
    std::string limits, buckets;
    double count = 0;
    for (std::size_t i = 0; i < made.counts.size(); ++i) {
      const auto in_bucket = static_cast<double>(made.counts[i]);
      count += in_bucket;
      limits += little_endian(std::bit_cast<uint64_t>(made.edges[i + 1]), 8);
      buckets += little_endian(std::bit_cast<uint64_t>(in_bucket), 8);
    }
    ProtobufWriter histogram;
    histogram.float64(kHistogramMin, made.edges.front()).float64(kHistogramMax, made.edges.back());
    histogram.float64(kHistogramCount, count).float64(kHistogramSum, made.sum);
    histogram.float64(kHistogramSquares, made.sum_of_squares);
    histogram.bytes(kHistogramLimits, limits).bytes(kHistogramBuckets, buckets);
    put(ProtobufWriter().text(kValueTag, tag).message(kValueHistogram, histogram));
  }

 private:
  void put(const ProtobufWriter& value) { message_.message(1, value); }

  ProtobufWriter message_;
};

bool is_charted(const LogRecord& record) {
  static const std::set<std::string> kEvents = {"start", "stop", "error", "void", "text", "image"};
  return !kEvents.contains(record.kind);
}

// Strings of a charted record (an estimated time of arrival, say) are for the terminal: they would be a text per line.
void add_charts(const LogRecord& record, Summary& summary) {
  for (const auto& [name, value] : record.values) {
    const std::string tag = record.kind + "/" + name;
    if (const auto* number = std::get_if<double>(&value)) summary.add(tag, *number);
    if (const auto* count = std::get_if<int64_t>(&value)) summary.add(tag, static_cast<float>(*count));
  }
}

std::string value_text(const LogValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* count = std::get_if<int64_t>(&value)) return std::to_string(*count);
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%.9g", std::get<double>(value));
  return digits.data();
}

// Texts under their own names; start, stop, error and void as one text with a list of what they say.
void add_texts(const LogRecord& record, Summary& summary) {
  if (record.kind == "text") {
    for (const auto& [name, value] : record.values) summary.add(name, value_text(value));
    return;
  }
  std::string text = record.line;
  // Markdown wants an empty line before a list.
  if (!text.empty() && !record.values.empty()) text += "\n\n";
  for (const auto& [name, value] : record.values) text += "- " + name + ": " + value_text(value) + "\n";
  if (!text.empty()) summary.add(record.kind, text);
}

class TensorBoardSink : public LogSink {
 public:
  explicit TensorBoardSink(std::string folder) : folder_(std::move(folder)) { make_output_folder(kSink, folder_); }

  void write(const LogRecord& record) override {
    if (!file_) open();
    const bool starts = !session_started_ && (record.kind == "start" || record.kind == "text");
    if (starts || record.kind == "void") start_session(record, record.kind == "void" || goes_on(record));
    Summary summary;
    if (is_charted(record)) {
      add_charts(record, summary);
    } else {
      add_texts(record, summary);
    }
    for (const LogImage& shown : record.images) summary.add(shown);
    for (const auto& [name, made] : record.histograms) summary.add(name, made);
    if (!summary.empty()) append(record, record.step, kEventSummary, summary.message());
  }

 private:
  void open() {
    write_file(kSink, [this] { file_ = std::make_unique<file_io::FileWriter>(next_path(folder_), 0); });
    append(ProtobufWriter()
               .float64(kEventWallTime, static_cast<double>(std::time(nullptr)))
               .text(kEventFileVersion, "brain.Event:2"));
  }

  // TensorBoard forgets all events whose step is not below the one given. What was logged at the step that a run goes
  // on from is still true, and results of an evaluation on its own take nothing back.
  void start_session(const LogRecord& first, bool goes_on) {
    const ProtobufWriter start = ProtobufWriter().integer(kSessionStatus, kSessionStart);
    append(first, goes_on ? first.step + 1 : first.step, kEventSessionLog, start);
    session_started_ = true;
  }

  void append(const LogRecord& record, int64_t step, int field, const ProtobufWriter& message) {
    append(
        ProtobufWriter().float64(kEventWallTime, record.wall_time).integer(kEventStep, step).message(field, message));
  }
  void append(const ProtobufWriter& event) {
    const std::string length = little_endian(event.data().size(), 8);
    const std::string record = length + masked_sum(length) + event.data() + masked_sum(event.data());
    write_file(kSink, [&] { file_->write(record.data(), record.size()); });
  }

  std::string folder_;
  std::unique_ptr<file_io::FileWriter> file_;
  bool session_started_ = false;
};

}  // namespace

std::unique_ptr<LogSink> tensorboard_sink(const std::string& folder) {
  return std::make_unique<TensorBoardSink>(folder);
}

}  // namespace duet
