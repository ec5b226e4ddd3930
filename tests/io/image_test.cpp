#include "io/image.h"
#include <cstdio>
#include <map>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
// After <cstdio>, which they need.
#include <jpeglib.h>
#include <png.h>
#include "base/error.h"
#include "io/png.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

std::string jpeg_bytes(const at::Tensor& pixels, int restart_rows = 0) {
  jpeg_compress_struct encoder{};
  jpeg_error_mgr errors{};
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* memory = nullptr;
  unsigned long size = 0;  // NOLINT: libjpeg's type
  jpeg_mem_dest(&encoder, &memory, &size);
  encoder.image_height = static_cast<JDIMENSION>(pixels.size(0));
  encoder.image_width = static_cast<JDIMENSION>(pixels.size(1));
  encoder.input_components = static_cast<int>(pixels.size(2));
  encoder.in_color_space = pixels.size(2) == 3 ? JCS_RGB : JCS_GRAYSCALE;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, 100, TRUE);
  encoder.restart_in_rows = restart_rows;
  jpeg_start_compress(&encoder, TRUE);
  while (encoder.next_scanline < encoder.image_height) {
    JSAMPROW row = pixels.data_ptr<uint8_t>() + encoder.next_scanline * pixels.stride(0);
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  jpeg_destroy_compress(&encoder);
  const std::string bytes(reinterpret_cast<char*>(memory), size);
  std::free(memory);
  return bytes;
}

// A PNG of single channel rows.
std::string level_png(const std::vector<std::vector<uint8_t>>& rows, int width, int bit_depth, int color_type) {
  std::string bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &bytes,
      [](png_structp writer, png_bytep data, png_size_t count) {
        static_cast<std::string*>(png_get_io_ptr(writer))->append(reinterpret_cast<char*>(data), count);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(rows.size()), bit_depth, color_type,
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  const png_color colors[4] = {{0, 0, 0}, {200, 0, 0}, {0, 200, 0}, {9, 9, 9}};
  if (color_type == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, colors, 4);
  png_write_info(png, info);
  for (const auto& row : rows) png_write_row(png, row.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

at::Tensor gradient_picture() {
  return (at::arange(16 * 24).view({16, 24, 1}) * at::tensor({1, 2, 3}) / 5).clamp(0, 255).to(at::kByte).contiguous();
}

TEST(Image, ReadsJpegInColoursAndGrey) {
  const TempDir dir;
  const at::Tensor pixels = gradient_picture();
  const at::Tensor read = read_image(dir.write("a.jpg", jpeg_bytes(pixels)));
  ASSERT_EQ(read.sizes(), pixels.sizes());
  EXPECT_LE((read.to(at::kInt) - pixels.to(at::kInt)).abs().to(at::kFloat).mean().item<double>(), 3.0) << "lossy";
  const at::Tensor grey = pixels.slice(2, 0, 1).contiguous();
  const at::Tensor read_grey = read_image(dir.write("b.JPG", jpeg_bytes(grey)));
  ASSERT_EQ(read_grey.sizes(), pixels.sizes());
  EXPECT_TRUE(at::equal(read_grey.select(2, 0), read_grey.select(2, 2)));
}

std::string with(std::string bytes, std::size_t at, std::size_t replaced, const std::string& by) {
  return bytes.replace(at, replaced, by);
}

// Pillow, torchvision and OpenCV read these files too, with the pixels of the whole one.
TEST(Image, ReadsOddJpegFilesThatHoldAllPixels) {
  const TempDir dir;
  const std::string whole = jpeg_bytes(gradient_picture());
  const at::Tensor pixels = read_image(dir.write("whole.jpg", whole));
  const std::size_t tables = whole.find("\xFF\xDB"), scan = whole.find("\xFF\xDA");
  const std::string adobe(
      "\xFF\xEE\0\x0E"
      "Adobe\0\x64\0\0\0\0\x07",
      16);
  const std::map<std::string, std::string> files = {
      {"extraneous bytes before the end", with(whole, whole.size() - 2, 0, "\x12\x34\x56")},
      {"extraneous bytes in the header", with(whole, tables, 0, "\x01\x02\x03")},
      {"bytes behind the end", whole + "garbage"},
      {"JFIF revision 0.00", with(whole, 11, 2, std::string(2, '\0'))},
      {"JFIF revision 9.09", with(whole, 11, 2, "\x09\x09")},
      {"Adobe transform 7", with(whole, 2, 18, adobe)},
      {"parameters of the scan all 0", with(whole, scan + 11, 3, std::string(3, '\0'))}};
  for (const auto& [what, bytes] : files) {
    EXPECT_TRUE(at::equal(read_image(dir.write("odd.jpg", bytes)), pixels)) << what;
  }
}

TEST(Image, RefusesJpegFilesThatHaveLostPixels) {
  const TempDir dir;
  const std::string whole = jpeg_bytes(gradient_picture().repeat({4, 1, 1}), /*restart_rows=*/1);
  const std::size_t restart = whole.find("\xFF\xD1"), scan = whole.find("\xFF\xDA") + 14;
  ASSERT_NE(restart, std::string::npos);
  const std::size_t middle = scan + (restart - scan) / 2;
  const std::map<std::string, std::string> files = {
      {"premature end of JPEG file", whole.substr(0, middle)},
      {"premature end of data segment", whole.substr(0, middle) + "\xFF\xD9"},
      {"no end", whole.substr(0, whole.size() - 2)},
      {"a restart marker of another number", with(whole, restart, 2, "\xFF\xD5")},
      {"a restart marker that is lost", with(whole, restart, 2, "")},
      {"damage before a restart marker", with(whole, scan, 8, std::string(8, '\xFE'))}};
  for (const auto& [what, bytes] : files) {
    SCOPED_TRACE(what);
    expect_error<DataError>([&] { read_image(dir.write("lost.jpg", bytes)); }, {"lost.jpg", "no usable JPEG"});
  }
}

TEST(Image, TellsFilesApartByTheirBytes) {
  const TempDir dir;
  const at::Tensor pixels = gradient_picture();
  EXPECT_TRUE(at::equal(read_image(dir.write("is_png.jpg", encode_png(pixels))), pixels));
  EXPECT_TRUE(is_image_name("x/a.PNG") && is_image_name("a.jpeg") && !is_image_name("a.txt") && !is_image_name("png"));
}

// As Pillow reads them: the upper 8 bits of 16, no transparency, no gamma.
TEST(Image, TakesTheNumbersOfPngFilesAsTheyAre) {
  const TempDir dir;
  const auto first = [&](const std::string& bytes) {
    const at::Tensor pixels = read_image(dir.write("a.png", bytes));
    EXPECT_EQ(pixels.size(2), 3);
    return pixels[0][0][0].item<int>();
  };
  EXPECT_EQ(first(level_png({{128, 0}}, 1, 16, PNG_COLOR_TYPE_GRAY)), 128);
  EXPECT_EQ(first(level_png({{100, 128}}, 1, 8, PNG_COLOR_TYPE_GRAY_ALPHA)), 100);
  EXPECT_EQ(first(level_png({{1, 2, 3, 0}}, 1, 8, PNG_COLOR_TYPE_RGB_ALPHA)), 1);
  EXPECT_EQ(first(level_png({{0b01000000}}, 4, 2, PNG_COLOR_TYPE_PALETTE)), 200);
  EXPECT_EQ(first(level_png({{0b01000000}}, 4, 2, PNG_COLOR_TYPE_GRAY)), 85);
}

TEST(Image, RefusesDamagedFilesByName) {
  const TempDir dir;
  expect_error<DataError>([&] { read_image(dir.write("empty.png", "")); }, {"empty.png", "empty file"});
  const std::string jpeg = jpeg_bytes(gradient_picture());
  for (const std::size_t kept : {std::size_t{3}, std::size_t{20}, jpeg.size() / 2}) {
    const std::string path = dir.write("cut.jpg", jpeg.substr(0, kept));
    expect_error<DataError>([&] { read_image(path); }, {"cut.jpg", "no usable JPEG"});
  }
  expect_error<DataError>([&] { read_image(dir.write("x.png", "hello")); }, {"x.png", "neither PNG nor JPEG"});
  expect_error<DataError>([&] { read_image(dir / "no\nne.png"); }, {"no\\x0ane.png"});
}

TEST(Mask, HoldsTheNumbersOfGreyAndPaletteFiles) {
  const TempDir dir;
  const auto read = [&](const std::string& bytes) { return read_mask(dir.write("mask.png", bytes)); };
  EXPECT_TRUE(at::equal(read(level_png({{0, 1, 2}, {3, 255, 7}}, 3, 8, PNG_COLOR_TYPE_GRAY)),
                        at::tensor({0, 1, 2, 3, 255, 7}, at::kLong).view({2, 3})));
  EXPECT_TRUE(at::equal(read(level_png({{0, 3, 1}}, 3, 8, PNG_COLOR_TYPE_PALETTE)),
                        at::tensor({0, 3, 1}, at::kLong).view({1, 3})));
  // Two bits a pixel: 0, 1, 2, 3.
  EXPECT_TRUE(at::equal(read(level_png({{0b00011011}}, 4, 2, PNG_COLOR_TYPE_PALETTE)),
                        at::tensor({0, 1, 2, 3}, at::kLong).view({1, 4})));
  EXPECT_TRUE(
      at::equal(read(level_png({{1, 44}}, 1, 16, PNG_COLOR_TYPE_GRAY)), at::tensor({300}, at::kLong).view({1, 1})));
}

TEST(Mask, RefusesColoursAndDamage) {
  const TempDir dir;
  expect_error<DataError>([&] { read_mask(dir.write("rgb.png", encode_png(gradient_picture()))); },
                          {"rgb.png", "in colours"});
  expect_error<DataError>([&] { read_mask(dir.write("mask.jpg", jpeg_bytes(gradient_picture()))); },
                          {"mask.jpg", "found a JPEG, expected a PNG"});
  const std::string good = level_png({{0, 1, 2}}, 3, 8, PNG_COLOR_TYPE_GRAY);
  for (const std::size_t kept : {std::size_t{4}, std::size_t{30}, good.size() - 20}) {
    const std::string path = dir.write("cut.png", good.substr(0, kept));
    expect_error<DataError>([&] { read_mask(path); }, {"cut.png", "no usable PNG"});
  }
}

}  // namespace
}  // namespace duet
