#include "io/image.h"
#include <algorithm>
#include <cctype>
#include <csetjmp>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <ATen/ops/empty.h>
// After <cstdio>, which it needs.
#include <jpeglib.h>
// After <jpeglib.h>, whose version it looks at.
#include <jerror.h>
#include "base/error.h"
#include "io/file_io.h"
#include "io/picture_size.h"
#include "io/png.h"
#include "io/read_file.h"

namespace duet {

namespace {

constexpr uint64_t kProgressiveBytes = 16;  // of a pixel: the picture, twice where it holds inks, and its coefficients
constexpr int kMaxScans = 500;              // of a progressive picture, each of which passes over all of it

// libjpeg calls error_exit() where it can go no further, and that may not return.
struct ErrorHandler : jpeg_error_mgr {
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX] = {};
};

void leave(j_common_ptr decoder) {
  auto* handler = static_cast<ErrorHandler*>(decoder->err);
  decoder->err->format_message(decoder, handler->message);
  std::longjmp(handler->escape, 1);
}

// Such a file is odd, yet no row or block of it is missing, and all programs read the same pixels. Within a scan,
// before a restart marker, bytes are left over where those before them were damaged.
bool keeps_pixels(const jpeg_error_mgr& warning) {
  switch (warning.msg_code) {
    case JWRN_EXTRANEOUS_DATA: return warning.msg_parm.i[1] < JPEG_RST0 || warning.msg_parm.i[1] > JPEG_RST0 + 7;
    case JWRN_JFIF_MAJOR:
    case JWRN_ADOBE_XFORM:
    case JWRN_NOT_SEQUENTIAL: return true;
    default: return false;
  }
}

// A damaged file is an error, not a picture with grey parts.
void refuse_lost_pixels(j_common_ptr decoder, int level) {
  if (level < 0 && !keeps_pixels(*decoder->err)) leave(decoder);
}

void limit_scans(j_common_ptr decoder) {
  if (reinterpret_cast<j_decompress_ptr>(decoder)->input_scan_number <= kMaxScans) return;
  auto* handler = static_cast<ErrorHandler*>(decoder->err);
  std::snprintf(handler->message, sizeof handler->message, "it has more than %d scans", kMaxScans);
  std::longjmp(handler->escape, 1);
}

struct Decoder : jpeg_decompress_struct {
  ErrorHandler handler;
  jpeg_progress_mgr watch{};

  Decoder() : jpeg_decompress_struct{} {
    err = jpeg_std_error(&handler);
    handler.error_exit = leave;
    handler.emit_message = refuse_lost_pixels;
    watch.progress_monitor = limit_scans;
  }
  ~Decoder() { jpeg_destroy_decompress(this); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
};

[[noreturn]] void refuse_jpeg(const std::string& why) {
  throw DataError("[jpeg] found bytes that are no usable JPEG (" + why + "), expected a whole file; write it again");
}

// No object with a destructor may live in the functions that libjpeg jumps out of.
bool read_header(Decoder& decoder, std::string_view bytes) {
  if (setjmp(decoder.handler.escape) != 0) return false;
  jpeg_create_decompress(&decoder);
  decoder.progress = &decoder.watch;
  decoder.mem->max_memory_to_use = static_cast<long>(std::min<uint64_t>(
      file_memory(bytes.size(), kPictureTimes), static_cast<uint64_t>(std::numeric_limits<long>::max())));
  jpeg_mem_src(&decoder, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&decoder, TRUE);
  decoder.out_color_space =
      decoder.jpeg_color_space == JCS_YCCK || decoder.jpeg_color_space == JCS_CMYK ? JCS_CMYK : JCS_RGB;
  return true;
}

bool read_rows(Decoder& decoder, uint8_t* pixels) {
  if (setjmp(decoder.handler.escape) != 0) return false;
  jpeg_start_decompress(&decoder);
  const std::size_t row_bytes = std::size_t{decoder.output_width} * static_cast<std::size_t>(decoder.output_components);
  while (decoder.output_scanline < decoder.output_height) {
    JSAMPROW row = pixels + decoder.output_scanline * row_bytes;
    jpeg_read_scanlines(&decoder, &row, 1);
  }
  jpeg_finish_decompress(&decoder);
  return true;
}

// Adobe's files, the only ones there are, hold the inverse of each ink.
at::Tensor rgb_of_cmyk(const at::Tensor& cmyk) {
  const int64_t count = cmyk.numel() / 4;
  at::Tensor rgb = at::empty({cmyk.size(0), cmyk.size(1), 3}, at::kByte);
  const uint8_t* in = cmyk.const_data_ptr<uint8_t>();
  uint8_t* out = rgb.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < 3; ++c) out[3 * i + c] = static_cast<uint8_t>(in[4 * i + c] * in[4 * i + 3] / 255);
  }
  return rgb;
}

}  // namespace

at::Tensor decode_jpeg(std::string_view bytes) {
  Decoder decoder;
  if (!read_header(decoder, bytes)) refuse_jpeg(decoder.handler.message);
  const uint64_t bytes_per_pixel = decoder.progressive_mode != 0 ? kProgressiveBytes : kPixelBytes;
  check_picture("jpeg", {decoder.image_height, decoder.image_width, bytes_per_pixel}, bytes.size());
  const int64_t channels = decoder.out_color_space == JCS_CMYK ? 4 : 3;
  const at::Tensor pixels = at::empty({decoder.image_height, decoder.image_width, channels}, at::kByte);
  if (!read_rows(decoder, pixels.mutable_data_ptr<uint8_t>())) refuse_jpeg(decoder.handler.message);
  return channels == 4 ? rgb_of_cmyk(pixels) : pixels;
}

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
