#include "io/image.h"
#include <algorithm>
#include <cctype>
#include <filesystem>
#include "base/error.h"
#include "io/file_io.h"
#include "io/png.h"
#include "io/read_file.h"

namespace duet {

namespace {

constexpr uint64_t kMaxImageFile = uint64_t{1} << 30;

template <class Decode>
at::Tensor decode_file(const std::string& path, Decode decode) {
  return read_file("image", path, [&] {
    const std::string bytes = file_io::read_text(path, kMaxImageFile);
    require<DataError>(!bytes.empty(), "[image] found an empty file, expected a PNG or JPEG file; write it again");
    return decode(bytes);
  });
}

bool is_jpeg(const std::string& bytes) { return bytes.starts_with("\xFF\xD8\xFF"); }

}  // namespace

bool is_image_name(const std::string& path) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

at::Tensor read_image(const std::string& path) {
  return decode_file(path, [](const std::string& bytes) {
    if (is_jpeg(bytes)) return decode_jpeg(bytes);
    if (bytes.starts_with("\x89PNG")) return decode_png(bytes);
    throw DataError("[image] found a file that is neither PNG nor JPEG; convert it to one of them");
  });
}

at::Tensor read_mask(const std::string& path) {
  return decode_file(path, [](const std::string& bytes) {
    if (is_jpeg(bytes))
      throw DataError("[image] found a JPEG, expected a PNG, as JPEG changes labels; make the mask anew");
    return decode_png_levels(bytes);
  });
}

}  // namespace duet
