#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "../../base/options.h"
#include "../../data/dataset.h"
#include "fashion_mnist.h"

namespace duet {

struct FashionScenesOptions {
  std::string root = "/usr/share/datasets/fashion-mnist";  // IDX files of Fashion-MNIST, or of any set of that form
  std::string split = "train";                             // whose images the scenes show; or "test"
  int64_t length = 10000;                                  // scenes
  int64_t seed = 0;                                        // other scenes of the same images
  std::vector<int64_t> size = {64, 64};                    // height and width of a scene
  int64_t max_objects = 3;                                 // a scene shows 1 to this many, later ones on top
  double min_scale = 0.9, max_scale = 1.5;                 // of an object, drawn for each
  bool flip = true;                                        // left and right, every other object
  double threshold = 0.1;           // an image's pixels above it are the object, of grey levels in [0, 1)
  double noise = 0.05;              // width of the uniform noise over a scene, >= 0
  bool ignore_rim = false;          // marks the pixels that touch an object as 255
  bool normalize = true;            // (x - mean) / std; else grey levels in [0, 1]
  double mean = 0.325, std = 0.21;  // of scenes with the values above

  static const OptionFields& fields();
};

// Scenes put together from images of Fashion-MNIST over a noisy gradient, for semantic segmentation. Yields "image"
// float32 [N, 1, H, W] and "target" int64 [N, H, W]: 0 for the background, 1 + the label of the garment on top, 255
// (ignore) on its rim if asked for. Scene i depends on the options and i alone, so that no file of scenes is needed.
class FashionScenes : public Dataset {
 public:
  // Reads the images. Throws ConfigError for bad options, and if an object at its largest does not fit into a scene;
  // DataError as FashionMnist does.
  explicit FashionScenes(FashionScenesOptions options = {});

  int64_t size() const override { return options_.length; }
  Batch get(const std::vector<int64_t>& indices) const override;
  bool in_memory() const override { return true; }
  Batch denormalized(const Batch& batch, const std::vector<int64_t>& indices) const override;
  // The largest label but 255.
  int64_t max_label() const override { return garments_.max_label() + 1; }

 private:
  // Into the batch's memory.
  void draw_scene(int64_t index, const at::Tensor& grey, const at::Tensor& label) const;

  FashionScenesOptions options_;
  FashionMnist garments_;
};

}  // namespace duet
