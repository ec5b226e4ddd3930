#include "io/png.h"
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>
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

namespace {

// The bytes that libpng reads next.
struct LevelSource {
  std::string_view bytes;
  char message[128] = {};
};

[[noreturn]] void stop_reading(png_structp reader, png_const_charp why) {
  auto* source = static_cast<LevelSource*>(png_get_error_ptr(reader));
  std::snprintf(source->message, sizeof(source->message), "%s", why);
  png_longjmp(reader, 1);
}

void give_bytes(png_structp reader, png_bytep target, png_size_t count) {
  auto* source = static_cast<LevelSource*>(png_get_io_ptr(reader));
  if (source->bytes.size() < count) png_error(reader, "it ends too early");
  std::memcpy(target, source->bytes.data(), count);
  source->bytes.remove_prefix(count);
}

// libpng's reader of single rows, which leaves the places of a palette as they are.
struct LevelReader {
  explicit LevelReader(LevelSource& source)
      : png(png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, stop_reading, [](png_structp, png_const_charp) {})),
        info(png_create_info_struct(png)) {
    png_set_read_fn(png, &source, give_bytes);
  }
  ~LevelReader() { png_destroy_read_struct(&png, &info, nullptr); }
  LevelReader(const LevelReader&) = delete;
  LevelReader& operator=(const LevelReader&) = delete;

  png_structp png;
  png_infop info;
};

// No object with a destructor may live in the functions that libpng jumps out of.
bool read_level_header(LevelReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_info(reader.png, reader.info);
  png_set_packing(reader.png);  // a byte for each pixel of fewer bits
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

bool read_level_rows(LevelReader& reader, png_bytepp rows) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, rows);
  png_read_end(reader.png, nullptr);
  return true;
}

[[noreturn]] void refuse_levels(const LevelSource& source) {
  throw DataError(std::string("[png] found bytes that are no usable PNG (") + source.message +
                  "), expected a whole file; write it again");
}

void check_levels(const LevelReader& reader) {
  const auto type = png_get_color_type(reader.png, reader.info);
  require<DataError>(type == PNG_COLOR_TYPE_GRAY || type == PNG_COLOR_TYPE_PALETTE,
                     "[png] found a mask in colours, expected grey levels or a palette, whose numbers are the classes; "
                     "convert it");
  const uint64_t pixels =
      uint64_t{png_get_image_width(reader.png, reader.info)} * png_get_image_height(reader.png, reader.info);
  require<DataError>(pixels <= kMaxPixels, c10::str("[png] found a mask of ", pixels, " pixels, expected at most ",
                                                    kMaxPixels, "; make it smaller"));
}

}  // namespace

at::Tensor decode_png_levels(std::string_view bytes) {
  LevelSource source{bytes};
  LevelReader reader(source);
  if (!read_level_header(reader)) refuse_levels(source);
  check_levels(reader);
  const int64_t height = png_get_image_height(reader.png, reader.info);
  const int64_t width = png_get_image_width(reader.png, reader.info);
  const int64_t row_bytes = static_cast<int64_t>(png_get_rowbytes(reader.png, reader.info));
  const bool wide = png_get_bit_depth(reader.png, reader.info) == 16;
  std::vector<uint8_t> packed(static_cast<std::size_t>(height * row_bytes));
  std::vector<png_bytep> rows;
  for (int64_t y = 0; y < height; ++y) rows.push_back(packed.data() + y * row_bytes);
  if (!read_level_rows(reader, rows.data())) refuse_levels(source);
  const at::Tensor levels = at::empty({height, width}, at::kLong);
  int64_t* out = levels.mutable_data_ptr<int64_t>();
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* row = rows[static_cast<std::size_t>(y)];
    for (int64_t x = 0; x < width; ++x) *out++ = wide ? 256 * row[2 * x] + row[2 * x + 1] : row[x];
  }
  return levels;
}

at::Tensor read_png(const std::string& path) try {
  return decode_png(file_io::read_text(path, kMaxFile));
} catch (const file_io::IoError& error) {
  throw DataError(std::string("[read_png] ") + error.what() + ", expected a PNG file; correct the path");
} catch (const DataError& error) {
  throw DataError(std::string(error.what()) + " (file '" + path + "')");
}

}  // namespace duet
