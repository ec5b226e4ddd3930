#include "cli/zoo/scene_canvas.h"
#include <algorithm>
#include <cmath>

namespace duet {

namespace {

constexpr double kSmallestFraction = 1.0 / 9007199254740992.0;  // 2^-53: a double holds 53 of 64 bits

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Where an output row or column lies between two of the image.
struct Tap {
  int64_t first, second;
  float fraction;
};

std::vector<Tap> taps(int64_t from, int64_t to, bool flip) {
  std::vector<Tap> all(static_cast<std::size_t>(to));
  for (int64_t i = 0; i < to; ++i) {
    const double at =
        (static_cast<double>(flip ? to - 1 - i : i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5;
    const double inside = std::clamp(at, 0.0, static_cast<double>(from - 1));
    const auto first = static_cast<int64_t>(inside);
    all[static_cast<std::size_t>(i)] = {first, std::min(first + 1, from - 1),
                                        static_cast<float>(inside - static_cast<double>(first))};
  }
  return all;
}

}  // namespace

Draws::Draws(int64_t seed, int64_t index)
    : state_(mixed(mixed(static_cast<uint64_t>(seed)) + static_cast<uint64_t>(index))) {}

uint64_t Draws::bits() { return mixed(state_ += 0x9E3779B97F4A7C15ULL); }

double Draws::uniform(double low, double high) {
  return low + (high - low) * (static_cast<double>(bits() >> 11) * kSmallestFraction);
}

Sprite make_sprite(const float* image, SpriteSize from, double scale, bool flip) {
  const auto scaled = [scale](int64_t pixels) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(pixels) * scale));
  };
  Sprite sprite{scaled(from.height), scaled(from.width), {}};
  sprite.grey.resize(static_cast<std::size_t>((sprite.height + 2) * (sprite.width + 2)));
  const std::vector<Tap> rows = taps(from.height, sprite.height, false), columns = taps(from.width, sprite.width, flip);
  for (int64_t y = 0; y < sprite.height; ++y) {
    const Tap& row = rows[static_cast<std::size_t>(y)];
    const float *upper = image + row.first * from.width, *lower = image + row.second * from.width;
    float* out = sprite.grey.data() + (y + 1) * (sprite.width + 2) + 1;
    for (const Tap& column : columns) {
      const float top = upper[column.first] + column.fraction * (upper[column.second] - upper[column.first]);
      const float bottom = lower[column.first] + column.fraction * (lower[column.second] - lower[column.first]);
      *out++ = top + row.fraction * (bottom - top);
    }
  }
  return sprite;
}

void SceneCanvas::fill_with_gradient(Draws& draws) const {
  const double level = draws.uniform(0.1, 0.4);
  const double down = draws.uniform(-0.3, 0.3), right = draws.uniform(-0.3, 0.3);
  std::fill_n(label, height * width, int64_t{0});
  for (int64_t y = 0; y < height; ++y) {
    const double row = level + down * (static_cast<double>(y) / static_cast<double>(height) - 0.5);
    for (int64_t x = 0; x < width; ++x) {
      const double column = right * (static_cast<double>(x) / static_cast<double>(width) - 0.5);
      grey[y * width + x] = static_cast<float>(row + column);
    }
  }
}

void SceneCanvas::mark_rim(const Sprite& sprite, int64_t top, int64_t left, float threshold) const {
  const auto is_object = [&](int64_t y, int64_t x) {
    return y >= -1 && x >= -1 && y <= sprite.height && x <= sprite.width && sprite(y, x) > threshold;
  };
  for (int64_t y = std::max<int64_t>(-1, -top); y <= std::min(sprite.height, height - 1 - top); ++y) {
    for (int64_t x = std::max<int64_t>(-1, -left); x <= std::min(sprite.width, width - 1 - left); ++x) {
      if (is_object(y - 1, x) || is_object(y + 1, x) || is_object(y, x - 1) || is_object(y, x + 1)) {
        label[(top + y) * width + left + x] = kIgnore;
      }
    }
  }
}

void SceneCanvas::paste(const Sprite& sprite, int64_t top, int64_t left, float threshold, int64_t new_label) const {
  for (int64_t y = 0; y < sprite.height; ++y) {
    for (int64_t x = 0; x < sprite.width; ++x) {
      const float value = sprite(y, x);
      if (!(value > threshold)) continue;
      const int64_t pixel = (top + y) * width + left + x;
      grey[pixel] = value;
      label[pixel] = new_label;
    }
  }
}

void SceneCanvas::add_noise(Draws& draws, float noise) const {
  uint64_t bits = 0;
  for (int64_t i = 0; i < height * width; ++i) {
    bits = i % 4 == 0 ? draws.bits() : bits >> 16;
    const float centred = static_cast<float>(bits & 0xFFFF) / 65535.0F - 0.5F;
    grey[i] = std::clamp(grey[i] + noise * centred, 0.0F, 1.0F);
  }
}

}  // namespace duet
