#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "data/transform.h"

namespace duet {

namespace {

constexpr Range kPixels = between(1, 65536);
constexpr Range kClasses = between(1, 1'000'000);
constexpr int64_t kMaxPixels = int64_t{1} << 28;

template <class Add, class Member>
void add_size(const Add& add, Member member) {
  add("size", member, "height and width in pixels, or one number for both").in(kPixels).one_or_list().needed();
}

template <class Options>
void check_size(const Options& options) {
  if (options.size.size() != 1 && options.size.size() != 2) {
    throw ConfigError("[Transform] size has " + std::to_string(options.size.size()) +
                      " numbers, expected height and width, or one for both");
  }
  const int64_t height = options.size.front(), width = options.size.back();
  if (height <= kMaxPixels / std::max<int64_t>(width, 1)) return;
  throw ConfigError(c10::str("[Transform] size is ", height, " x ", width, " pixels, expected at most ", kMaxPixels,
                             " in all; make it smaller"));
}

}  // namespace

const OptionFields& ChannelsFirstOptions::fields() {
  using O = ChannelsFirstOptions;
  return described<O>("ChannelsFirst", [](const auto& add) {
    add.about("Pictures [height, width] or [height, width, channels] become [channels, height, width].");
    add("tensor", &O::tensor, "the one that is changed");
  });
}

const OptionFields& ResizeOptions::fields() {
  using O = ResizeOptions;
  return described<O>("Resize", [](const auto& add) {
    add.about("Pictures bilinear, masks by the nearest pixel, to [size].");
    add_size(add, &O::size);
    add.rule(check_size<O>);
  });
}

const OptionFields& CropOptions::fields() {
  using O = CropOptions;
  return described<O>("Crop", [](const auto& add) {
    add.about("Cuts size pixels out of pictures and masks, at a random place or in the middle.");
    add_size(add, &O::size);
    add("padding", &O::padding, "pixels added on each side before").in(between(0, 4096));
    add("random", &O::random, "anywhere; false: from the middle");
    add.rule(check_size<O>);
  });
}

const OptionFields& RandomResizedCropOptions::fields() {
  using O = RandomResizedCropOptions;
  return described<O>("RandomResizedCrop", [](const auto& add) {
    add.about("Cuts a random part out and resizes it to size, as Inception is trained.");
    add_size(add, &O::size);
    add("scale", &O::scale, "least and largest share of the area").in({.low = 0, .high = 1, .above_low = true});
    add("ratio", &O::ratio, "least and largest width to height").in(above(0));
    add.rule(check_size<O>);
    add.rule([](const O& o) {
      if (o.scale[0] <= o.scale[1] && o.ratio[0] <= o.ratio[1]) return;
      throw ConfigError("[RandomResizedCrop] found a least scale or ratio above the largest, expected the least first");
    });
  });
}

const OptionFields& RandomFlipOptions::fields() {
  using O = RandomFlipOptions;
  return described<O>("RandomFlip", [](const auto& add) {
    add.about("Mirrors picture and mask.");
    add("chance", &O::chance, "chance that a sample is flipped").in(between(0, 1));
    add("direction", &O::direction, "left to right, or top to bottom").one_of({"horizontal", "vertical"});
  });
}

const OptionFields& RandomRotationOptions::fields() {
  using O = RandomRotationOptions;
  return described<O>("RandomRotation", [](const auto& add) {
    add.about("Turns picture and mask around the middle.");
    add("degrees", &O::degrees, "largest angle in degrees, to either side").in(between(0, 180));
  });
}

const OptionFields& ColorJitterOptions::fields() {
  using O = ColorJitterOptions;
  return described<O>("ColorJitter", [](const auto& add) {
    add.about("Draws brightness, contrast and saturation of pictures, uint8 or float32 in [0, 1].");
    add("brightness", &O::brightness, "factors of the brightness are drawn from 1 - x to 1 + x").in(at_least(0));
    add("contrast", &O::contrast, "factors of the contrast are drawn from 1 - x to 1 + x").in(at_least(0));
    add("saturation", &O::saturation, "factors of the saturation are drawn from 1 - x to 1 + x").in(at_least(0));
  });
}

const OptionFields& NormalizeOptions::fields() {
  using O = NormalizeOptions;
  return described<O>("Normalize", [](const auto& add) {
    add.about("(image - mean) / std of each channel, float32; uint8 is divided by 255 first.");
    add("mean", &O::mean, "mean of values in [0, 1]; one, or one per channel").one_or_list();
    add("std", &O::std, "standard deviation of values in [0, 1]; one, or one per channel").in(above(0)).one_or_list();
  });
}

const OptionFields& CutoutOptions::fields() {
  using O = CutoutOptions;
  return described<O>("Cutout", [](const auto& add) {
    add.about("Sets a square of the picture to 0: black, or the mean after Normalize.");
    add("size", &O::size, "side of the square that becomes 0, in pixels").in(kPixels);
    add("chance", &O::chance, "chance that a sample has one").in(between(0, 1));
  });
}

const OptionFields& MixupOptions::fields() {
  using O = MixupOptions;
  return described<O>("Mixup", [](const auto& add) {
    add.about("Mixes each sample of a batch with the one before it; target becomes float32 [N, num_classes].");
    add("alpha", &O::alpha, "both parameters of the Beta distribution that the share is drawn from").in(above(0));
    add("num_classes", &O::num_classes, "targets become float32 [N, num_classes]").in(kClasses).needed();
  });
}

const OptionFields& OneHotOptions::fields() {
  using O = OneHotOptions;
  return described<O>("OneHot", [](const auto& add) {
    add.about("Makes target int64 [N] float32 [N, num_classes].");
    add("num_classes", &O::num_classes, "targets become float32 [N, num_classes]").in(kClasses).needed();
  });
}

}  // namespace duet
