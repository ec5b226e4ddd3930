#pragma once

#include <cstdint>
#include <vector>

namespace duet {

// What FashionScenes draws with. Not installed.

// Numbers that depend on seed and index alone: SplitMix64, whose rule is the same with every standard library.
class Draws {
 public:
  Draws(int64_t seed, int64_t index);

  uint64_t bits();
  double uniform(double low, double high);
  int64_t below(int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }

 private:
  uint64_t state_;
};

// An object at its size in the scene, with a border of zeros so that a rim has a place.
struct Sprite {
  int64_t height = 0, width = 0;  // without the border
  std::vector<float> grey{};

  float operator()(int64_t y, int64_t x) const { return grey[static_cast<std::size_t>((y + 1) * (width + 2) + x + 1)]; }
};

struct SpriteSize {
  int64_t height, width;
};

// `image` of size `from` scaled in both directions, by linear interpolation between the centres of pixels.
Sprite make_sprite(const float* image, SpriteSize from, double scale, bool flip);

// One scene's grey levels and labels, in the batch's memory.
struct SceneCanvas {
  static constexpr int64_t kIgnore = 255;

  float* grey;
  int64_t* label;
  int64_t height, width;

  // Label 0 everywhere.
  void fill_with_gradient(Draws& draws) const;
  // Labels the pixels that touch the object as kIgnore, and its own: paste it afterwards.
  void mark_rim(const Sprite& sprite, int64_t top, int64_t left, float threshold) const;
  // Pixels above the threshold, which lie within the canvas.
  void paste(const Sprite& sprite, int64_t top, int64_t left, float threshold, int64_t new_label) const;
  // Levels stay in [0, 1].
  void add_noise(Draws& draws, float noise) const;
};

}  // namespace duet
