#pragma once

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

template <class Write>
void write_file(const char* format, const Write& write) {
  try {
    write();
  } catch (const file_io::IoError& error) {
    throw DataError(c10::str("[", format, "] ", error.what(), "; free space or name another place"));
  }
}

}  // namespace duet
