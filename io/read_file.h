#pragma once

#include <cstdint>
#include <string>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "io/file_io.h"

// What is wrong with a file as a DataError "[format] ..." that names it.

namespace duet {

template <class Read>
auto read_file(const char* format, const std::string& path, const Read& read) {
  try {
    return read();
  } catch (const MalformedFile& error) {
    throw DataError(
        c10::str("[", format, "] '", path, "' cannot be used: ", one_line(error.what), "; ", error.way_out));
  } catch (const DataError& error) {
    throw DataError(c10::str(error.what(), " (file '", one_line(path), "')"));
  } catch (const file_io::IoError& error) {
    throw DataError(c10::str("[", format, "] ", error.what(), ", expected a readable file; correct the path"));
  }
}

// All of a file that is text.
inline std::string read_plain_text(const char* format, const std::string& path, uint64_t max_bytes) {
  return read_file(format, path, [&] {
    std::string text = file_io::read_text(path, max_bytes);
    const bool is_utf16 = text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
    if (!is_utf16 && text.find('\0') == std::string::npos) return text;
    throw MalformedFile{"it is UTF-16, or no text at all, expected UTF-8", "save it as UTF-8, unpacked"};
  });
}

template <class Write>
void write_file(const char* format, const Write& write) {
  try {
    write();
  } catch (const file_io::IoError& error) {
    throw DataError(c10::str("[", format, "] ", error.what(), "; free space or name another place"));
  }
}

}  // namespace duet
