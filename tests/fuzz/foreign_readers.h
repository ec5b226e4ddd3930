#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace duet {

// A parser of files that strangers write. read() gives a text that differs where what was read differs, and throws
// duet::Error for a file that is no good; anything else that happens is a fault of ours.
struct ForeignReader {
  const char* kind;
  std::string (*read)(const std::string& path);
  // The file that random bytes stand for: some formats refuse nearly all bytes for a checksum, which hides what lies
  // behind it.
  std::string (*wrap)(std::string_view bytes);
};

const std::vector<ForeignReader>& foreign_readers();

// Throws std::out_of_range for a kind that there is not.
const ForeignReader& foreign_reader(const std::string& kind);

}  // namespace duet
