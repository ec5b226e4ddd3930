#include "io/png.h"
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <png.h>
#include <zlib.h>
#include "base/error.h"
#include "io/file_io.h"
#include "io/picture_size.h"
#include "io/read_file.h"

namespace duet {

namespace {

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
  return pixels.contiguous();
}

constexpr char kDescription[] = "Description";  // a keyword of the PNG specification

std::string big_endian(uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xFF);
  return bytes;
}

// libpng's short way of writing knows no texts.
std::string text_chunk(const std::string& text) {
  constexpr char kPlain[] = {0, 0, 0, 0, 0};  // the keyword's end, not packed, no language, no other keyword
  const std::string chunk = "iTXt" + (kDescription + std::string(kPlain, sizeof kPlain)) + text;
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(chunk.data()), static_cast<uInt>(chunk.size()));
  return big_endian(static_cast<uint32_t>(chunk.size() - 4)) + chunk + big_endian(static_cast<uint32_t>(sum));
}

}  // namespace

std::string encode_png(const at::Tensor& pixels, const std::string& description) {
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
  constexpr std::size_t kHeader = 33;  // signature and IHDR
  if (!description.empty()) bytes.insert(kHeader, text_chunk(description));
  return bytes;
}

void write_png(const std::string& path, const at::Tensor& pixels, const std::string& description) {
  const std::string bytes = encode_png(pixels, description);
  write_file("write_png", [&] { file_io::replace_file(path, bytes); });
}

namespace {

// The bytes that libpng reads next.
struct PngSource {
  std::string_view bytes;
  char message[128] = {};
};

[[noreturn]] void stop_reading(png_structp reader, png_const_charp why) {
  auto* source = static_cast<PngSource*>(png_get_error_ptr(reader));
  std::snprintf(source->message, sizeof(source->message), "%s", why);
  png_longjmp(reader, 1);
}

void give_bytes(png_structp reader, png_bytep target, png_size_t count) {
  auto* source = static_cast<PngSource*>(png_get_io_ptr(reader));
  if (source->bytes.size() < count) png_error(reader, "it ends too early");
  std::memcpy(target, source->bytes.data(), count);
  source->bytes.remove_prefix(count);
}

// libpng's reader of single rows, which changes only what it is told to: neither the places of a palette nor gamma.
struct PngReader {
  explicit PngReader(PngSource& source)
      : png(png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, stop_reading, [](png_structp, png_const_charp) {})),
        info(png_create_info_struct(png)) {
    png_set_read_fn(png, &source, give_bytes);
    // Texts, profiles and the like, which may be packed, are passed over: nobody asks for them here.
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  png_structp png;
  png_infop info;
};

// Grey levels and places of a palette as they are, a byte for each pixel of fewer bits.
void keep_levels(png_structp png) { png_set_packing(png); }

// To RGB of 8 bits; what the file says of gamma and transparency is left aside.
void make_rgb(png_structp png) {
  png_set_strip_16(png);
  png_set_palette_to_rgb(png);
  png_set_expand_gray_1_2_4_to_8(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
}

// No object with a destructor may live in the functions that libpng jumps out of.
bool read_header(PngReader& reader, void (*convert)(png_structp png)) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_info(reader.png, reader.info);
  convert(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

// What follows the pixels is not looked at: a picture whose comment is torn is a whole picture.
bool read_png_rows(PngReader& reader, png_bytepp rows) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, rows);
  return true;
}

[[noreturn]] void refuse_png(const PngSource& source) {
  throw DataError(std::string("[png] found bytes that are no usable PNG (") + source.message +
                  "), expected a whole file; write it again");
}

// As they are packed in rows: uint8 [height, bytes of a row].
at::Tensor read_pixels(PngReader& reader, PngSource& source, uint64_t file_bytes, uint64_t bytes_per_pixel) {
  const int64_t height = png_get_image_height(reader.png, reader.info);
  const int64_t width = png_get_image_width(reader.png, reader.info);
  check_picture("png", {static_cast<uint64_t>(height), static_cast<uint64_t>(width), bytes_per_pixel}, file_bytes);
  const auto row_bytes = static_cast<int64_t>(png_get_rowbytes(reader.png, reader.info));
  const at::Tensor pixels = at::empty({height, row_bytes}, at::kByte);
  std::vector<png_bytep> rows;
  for (int64_t y = 0; y < height; ++y) rows.push_back(pixels.mutable_data_ptr<uint8_t>() + y * row_bytes);
  if (!read_png_rows(reader, rows.data())) refuse_png(source);
  return pixels;
}

}  // namespace

at::Tensor decode_png(std::string_view bytes) {
  PngSource source{bytes};
  PngReader reader(source);
  if (!read_header(reader, make_rgb)) refuse_png(source);
  const at::Tensor pixels = read_pixels(reader, source, bytes.size(), kPixelBytes);
  const int64_t width = png_get_image_width(reader.png, reader.info);
  if (pixels.size(1) != 3 * width) refuse_png(source);
  return pixels.view({pixels.size(0), width, 3});
}

at::Tensor decode_png_levels(std::string_view bytes) {
  PngSource source{bytes};
  PngReader reader(source);
  if (!read_header(reader, keep_levels)) refuse_png(source);
  const auto type = png_get_color_type(reader.png, reader.info);
  require<DataError>(type == PNG_COLOR_TYPE_GRAY || type == PNG_COLOR_TYPE_PALETTE,
                     "[png] found a mask in colours, expected grey levels or a palette, whose numbers are the classes; "
                     "convert it");
  // int64, once more where classes are made of them, and flags
  const at::Tensor pixels = read_pixels(reader, source, bytes.size(), /*bytes_per_pixel=*/17);
  if (png_get_bit_depth(reader.png, reader.info) != 16) return pixels.to(at::kLong);
  const at::Tensor halves = pixels.view({pixels.size(0), -1, 2});
  return halves.select(2, 0).to(at::kLong).mul_(256).add_(halves.select(2, 1));
}

std::string png_description(std::string_view bytes) {
  PngSource source{bytes};
  PngReader reader(source);
  constexpr png_uint_32 kMostTexts = 10;  // a packed one may have 8 MB, libpng's own limit
  png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_AS_DEFAULT, reinterpret_cast<png_const_bytep>("iTXt"), 1);
  png_set_chunk_cache_max(reader.png, kMostTexts);
  if (!read_header(reader, keep_levels)) refuse_png(source);
  png_textp texts = nullptr;
  const int count = png_get_text(reader.png, reader.info, &texts, nullptr);
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(texts[i].key, kDescription) == 0) return texts[i].text;
  }
  return {};
}

}  // namespace duet
