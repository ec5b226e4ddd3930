#include <iostream>
#include <string>
#include <sys/resource.h>
#include "base/detail/bits.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "io/file_io.h"
#include "tests/fuzz/foreign_readers.h"

namespace {

using namespace duet;

std::string answer_to(const std::string& kind, const std::string& path) try {
  if (kind.starts_with("body_of_")) {
    const ForeignReader& reader = foreign_reader(kind.substr(8));
    file_io::replace_file(path, reader.wrap(file_io::read_text(path, uint64_t{1} << 30)));
    return answer_to(reader.kind, path);
  }
  const std::string text = foreign_reader(kind).read(path);
  return "loaded " + xxh3_hex(text.data(), text.size());
} catch (const Error& error) {
  return "refused " + one_line(error.what());
}

}  // namespace

// Answers lines "KIND PATH" with "KIB loaded HASH" or "KIB refused MESSAGE": the most memory that this process has
// taken so far, and what the file held. Anything else is a fault, which whoever asks sees.
int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const std::size_t space = line.find(' ');
    const std::string answer = answer_to(line.substr(0, space), line.substr(space + 1));
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::cout << usage.ru_maxrss << " " << answer << std::endl;
  }
}
