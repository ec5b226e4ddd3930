#include "io/png.h"
#include <filesystem>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include "base/error.h"
#include "io/image.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace duet {
namespace {

at::Tensor noise(int64_t height, int64_t width) { return at::randint(256, {height, width, 3}, at::kByte); }

TEST(Png, KeepsEveryPixel) {
  for (const auto& [height, width] : {std::pair{1, 1}, {1, 7}, {5, 3}, {64, 33}}) {
    const at::Tensor pixels = noise(height, width);
    EXPECT_TRUE(decode_png(encode_png(pixels)).equal(pixels)) << height << " x " << width;
  }
}

TEST(Png, RefusesWhatIsNoPicture) {
  expect_error<DataError>([] { encode_png(at::zeros({3, 4, 5}, at::kByte)); }, {"[3, 4, 5]", "[height, width, 3]"});
  expect_error<DataError>([] { encode_png(at::zeros({4, 5, 3})); }, {"Float"});
  expect_error<DataError>([] { encode_png(at::zeros({0, 5, 3}, at::kByte)); }, {"[0, 5, 3]"});
  expect_error<DataError>([] { encode_png({}); }, {"no tensor"});
}

TEST(Png, HoldsADescription) {
  const at::Tensor pixels = noise(9, 4);
  const std::string text = "left: picture, right: Vorhersage für Anna", bytes = encode_png(pixels, text);
  EXPECT_EQ(png_description(bytes), text);
  EXPECT_TRUE(decode_png(bytes).equal(pixels));
  EXPECT_EQ(png_description(encode_png(pixels)), "");
  expect_error<DataError>([&] { png_description(bytes.substr(0, 40)); }, {"no usable PNG"});
}

TEST(Png, WritesFiles) {
  const TempDir dir;
  const at::Tensor pixels = noise(9, 4);
  write_png(dir / "a.png", pixels);
  EXPECT_TRUE(read_image(dir / "a.png").equal(pixels));
  expect_error<DataError>([&] { write_png(dir / "none/a.png", pixels); }, {"none/a.png", "No such file"});
}

TEST(Png, LeavesADeviceOrPipeInItsPlace) {
  const TempDir dir;
  const std::string path = dir / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_error<Error>([&] { write_png(path, noise(2, 2)); }, {"device or pipe", path});
  EXPECT_TRUE(std::filesystem::is_fifo(path));
}

// Either the damage is noticed or it did not touch the picture.
TEST(Png, NeverReadsADamagedPictureAsAnother) {
  const at::Tensor pixels = at::arange(5 * 4 * 3, at::kByte).view({5, 4, 3});
  const std::string good = encode_png(pixels);
  int refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    try {
      EXPECT_TRUE(decode_png(bad).equal(pixels)) << "byte " << i;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 30);
  for (size_t size = 0; size + 13 < good.size(); ++size) {
    EXPECT_THROW(decode_png(good.substr(0, size)), DataError) << "first " << size << " bytes";
  }
}

}  // namespace
}  // namespace duet
