#include "io/csv.h"
#include <algorithm>
#include <iterator>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "io/file_io.h"
#include "io/file_memory.h"
#include "io/plain_tensor.h"
#include "io/read_file.h"

namespace duet {

namespace {

constexpr uint64_t kMaxCsvFile = uint64_t{1} << 32;
constexpr uint64_t kFieldBytes = 40, kRowBytes = 80;  // of a field and of a row without its text
constexpr std::size_t kMaxFields = 100'000, kMaxColumnName = 1000;

std::string without_spaces(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t") + 1 - begin));
}

// Takes a text apart, record by record.
class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& path, char separator)
      : text_(text), path_(path), separator_(separator), left_(file_memory(text.size(), kCsvTimes)) {
    if (text_.rfind("\xEF\xBB\xBF", 0) == 0) text_.remove_prefix(3);  // a byte order mark
  }

  // Line of the record that next() gave last.
  std::size_t line() const { return record_line_; }

  // False at the end of the text. Empty lines are passed over.
  bool next(std::vector<std::string>& fields) {
    fields.clear();
    charge(kRowBytes);
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) pass_line_end();
    if (at_ >= text_.size()) return false;
    record_line_ = line_;
    for (;;) {
      pass_blanks();
      fields.push_back(at_ < text_.size() && text_[at_] == '"' ? quoted() : plain());
      check_utf8(fields.back());
      charge(kFieldBytes + fields.back().size());
      if (fields.size() > kMaxFields)
        fail(c10::str("found more than ", kMaxFields, " fields in a line, expected fewer"));
      if (at_ >= text_.size()) return true;
      if (text_[at_] != separator_) {
        pass_line_end();
        return true;
      }
      ++at_;
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(c10::str("[Csv] ", path_, ":", record_line_, ": ", what));
  }

 private:
  // Two names would be shown, and saved, as the same.
  void check_utf8(const std::string& field) const {
    const bool is_ascii = std::ranges::all_of(field, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    if (!is_ascii && !is_utf8(field))
      fail("'" + one_line(field) + "' is no UTF-8; save the file as UTF-8 (iconv -f latin1 -t utf-8)");
  }

  void charge(uint64_t bytes) {
    if (bytes > left_)
      fail(c10::str("up to here it unfolds to more than a file of its size may take; ", kFileMemoryWayOut));
    left_ -= bytes;
  }

  void pass_line_end() {
    if (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
    ++at_;
    ++line_;
  }

  void pass_blanks() {
    while (at_ < text_.size() && text_[at_] != separator_ && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  std::string plain() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
    return without_spaces(text_.substr(begin, at_ - begin));
  }

  std::string quoted() {
    std::string field;
    for (++at_;; ++at_) {
      if (at_ >= text_.size()) fail("a quoted field begins here and does not end; close it with \"");
      if (text_[at_] == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') break;
        ++at_;
      }
      if (text_[at_] == '\n') ++line_;
      field += text_[at_];
    }
    ++at_;
    pass_blanks();
    const bool ends = at_ >= text_.size() || text_[at_] == separator_ || text_[at_] == '\n' || text_[at_] == '\r';
    if (!ends) fail("text stands behind the quote that ends a field; double a quote that belongs to it");
    return field;
  }

  std::string_view text_;
  const std::string& path_;
  char separator_;
  uint64_t left_;  // bytes that the table may still take
  std::size_t at_ = 0, line_ = 1, record_line_ = 1;
};

std::map<std::string, std::size_t> places_of(const CsvReader& reader, const std::vector<std::string>& columns,
                                             char separator) {
  std::map<std::string, std::size_t> places;
  for (const std::string& name : columns) {
    if (name.empty() || name.size() > kMaxColumnName || !places.emplace(name, places.size()).second) {
      reader.fail("found the columns " + join_first(columns) + ", expected a name for each, no two alike, of at most " +
                  std::to_string(kMaxColumnName) +
                  " bytes; is the first line that of the names? (pandas: index=False)");
    }
  }
  const std::size_t other = columns.front().find_first_of(";\t");
  if (columns.size() == 1 && other != std::string::npos && columns.front()[other] != separator)
    reader.fail("found one column, '" + one_line(columns.front()) + "', expected several; set 'separator'");
  return places;
}

}  // namespace

std::size_t CsvTable::column(const std::string& name) const {
  if (const auto found = places.find(name); found != places.end()) return found->second;
  throw DataError("[Csv] " + path + ": found no column '" + name + "'; " + known_and_nearest(name, columns));
}

CsvTable parse_csv(std::string_view text, const std::string& path, char separator) {
  CsvReader reader(text, path, separator);
  CsvTable table;
  table.path = path;
  table.bytes = text.size();
  require<DataError>(reader.next(table.columns), "[Csv] " + path + ": found nothing in it, expected column names");
  table.places = places_of(reader, table.columns, separator);
  for (std::vector<std::string> fields; reader.next(fields);) {
    if (fields.size() != table.columns.size()) {
      reader.fail(c10::str("found ", fields.size(), " fields, expected ", table.columns.size(),
                           " as there are columns; correct the line, or set 'separator'"));
    }
    // Not the list itself, which has room for twice as many.
    table.rows.emplace_back(std::make_move_iterator(fields.begin()), std::make_move_iterator(fields.end()));
    table.lines.push_back(reader.line());
  }
  return table;
}

CsvTable read_csv(const std::string& path, char separator) {
  return parse_csv(read_plain_text("Csv", path, kMaxCsvFile), path, separator);
}

}  // namespace duet
