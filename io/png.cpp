#include "io/png.h"
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <png.h>
#include "base/error.h"
#include "io/file_io.h"

namespace duet {

namespace {

constexpr int64_t kMaxSide = 1'000'000;  // libpng's own limit
constexpr uint64_t kMaxPixels = uint64_t{1} << 28;
constexpr uint64_t kMaxFile = uint64_t{1} << 30;

// libpng's description of a picture; png_image_free allows any state of it.
struct Picture : png_image {
  Picture() : png_image{} { version = PNG_IMAGE_VERSION; }
  ~Picture() { png_image_free(this); }
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;
};

at::Tensor checked(const at::Tensor& pixels) {
  const bool fits = pixels.defined() && pixels.scalar_type() == at::kByte && pixels.is_cpu() && pixels.dim() == 3 &&
                    pixels.size(2) == 3 && pixels.numel() > 0;
  if (!fits) {
    throw DataError(c10::str("[png] found ",
                             pixels.defined() ? c10::str(pixels.toString(), " ", pixels.sizes()) : "no tensor",
                             ", expected uint8 [height, width, 3] with pixels on the CPU; convert the picture"));
  }
  if (pixels.size(0) > kMaxSide || pixels.size(1) > kMaxSide ||
      static_cast<uint64_t>(pixels.size(0) * pixels.size(1)) > kMaxPixels) {
    throw DataError(c10::str("[png] found a picture of ", pixels.size(0), " x ", pixels.size(1),
                             " pixels, expected at most ", kMaxSide, " a side and ", kMaxPixels,
                             " in all; write a smaller one"));
  }
  return pixels.contiguous();
}

[[noreturn]] void refuse(const Picture& picture) {
  throw DataError(c10::str("[png] found bytes that are no usable PNG (", picture.message,
                           "), expected a whole file; write it again"));
}

}  // namespace

std::string encode_png(const at::Tensor& pixels) {
  const at::Tensor rows = checked(pixels);
  Picture picture;
  picture.height = static_cast<png_uint_32>(rows.size(0));
  picture.width = static_cast<png_uint_32>(rows.size(1));
  picture.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(picture);
  std::string bytes(size, '\0');
  if (png_image_write_to_memory(&picture, bytes.data(), &size, 0, rows.const_data_ptr<uint8_t>(), 0, nullptr) == 0) {
    throw DataError(c10::str("[png] encoding a picture failed: ", picture.message));
  }
  bytes.resize(size);
  return bytes;
}

void write_png(const std::string& path, const at::Tensor& pixels) {
  const std::string bytes = encode_png(pixels);
  try {
    file_io::replace_file(path, bytes);
  } catch (const file_io::IoError& error) {
    throw DataError(std::string("[write_png] ") + error.what() + "; make room or choose another folder");
  }
}

at::Tensor decode_png(std::string_view bytes) {
  Picture picture;
  if (png_image_begin_read_from_memory(&picture, bytes.data(), bytes.size()) == 0) refuse(picture);
  if (uint64_t{picture.height} * picture.width > kMaxPixels) {
    throw DataError(c10::str("[png] found a picture of ", picture.height, " x ", picture.width,
                             " pixels, expected at most ", kMaxPixels, "; make it smaller"));
  }
  picture.format = PNG_FORMAT_RGB;
  const at::Tensor pixels = at::empty({picture.height, picture.width, 3}, at::kByte);
  const png_color black{0, 0, 0};
  if (png_image_finish_read(&picture, &black, pixels.mutable_data_ptr<uint8_t>(), 0, nullptr) == 0) refuse(picture);
  return pixels;
}

at::Tensor read_png(const std::string& path) try {
  return decode_png(file_io::read_text(path, kMaxFile));
} catch (const file_io::IoError& error) {
  throw DataError(std::string("[read_png] ") + error.what() + ", expected a PNG file; correct the path");
} catch (const DataError& error) {
  throw DataError(std::string(error.what()) + " (file '" + path + "')");
}

}  // namespace duet
