#include <algorithm>
#include <array>
#include <charconv>
#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "hooks/detail/shared.h"
#include "hooks/prediction_hooks.h"

namespace duet {

namespace {

using Colour = std::array<uint8_t, 3>;

constexpr Colour kWhite = {255, 255, 255}, kGrey = {128, 128, 128}, kGreen = {0, 170, 60}, kRed = {210, 30, 30};
constexpr int64_t kGap = 4;      // pixels between panels, and the width of a frame
constexpr int64_t kSwatch = 16;  // height of the colours below a classified image
constexpr int64_t kSmallest = 128;

at::Tensor filled(int64_t height, int64_t width, const Colour& colour) {
  at::Tensor picture = at::empty({height, width, 3}, at::TensorOptions(at::kByte));
  for (int64_t channel = 0; channel < 3; ++channel)
    picture.select(2, channel).fill_(colour[static_cast<std::size_t>(channel)]);
  return picture;
}

// Of "#ff8000".
Colour parse_colour(const std::string& text) {
  uint32_t number = 0;
  const char* const last = text.data() + text.size();
  const bool is_one =
      text.size() == 7 && text[0] == '#' && std::from_chars(text.data() + 1, last, number, 16).ptr == last;
  require<ConfigError>(is_one, "[VisualizationHook] palette holds '" + text + "', expected colours like \"#ff8000\"");
  return {static_cast<uint8_t>(number >> 16), static_cast<uint8_t>(number >> 8), static_cast<uint8_t>(number)};
}

// Pascal VOC spreads the bits of the class number over the high bits of red, green and blue, so that near numbers
// differ.
Colour voc_colour(int number) {
  Colour colour = {0, 0, 0};
  for (int bit = 7; number > 0; --bit, number >>= 3) {
    for (int channel = 0; channel < 3; ++channel) {
      auto& value = colour[static_cast<std::size_t>(channel)];
      value = static_cast<uint8_t>(value | (number >> channel & 1) << bit);
    }
  }
  return colour;
}

// uint8 [classes, 3]
at::Tensor palette_tensor(const std::vector<std::string>& names) {
  constexpr int kOfVoc = 1 << 16;
  std::vector<Colour> colours;
  for (const std::string& name : names) colours.push_back(parse_colour(name));
  for (int i = 0; names.empty() && i < kOfVoc; ++i) colours.push_back(voc_colour(i));
  return at::tensor(at::ArrayRef<uint8_t>(colours.front().data(), 3 * colours.size())).view({-1, 3});
}

[[noreturn]] void fail(const std::string& what) {
  throw ConfigError("[SamplePainter] " + what + "; set draw: false, or give VisualizationHook a painter of your own");
}

// [C, H, W] with any number of channels, values of any range -> uint8 [H, W, 3].
at::Tensor to_rgb(const at::Tensor& image) {
  at::Tensor levels = image.detach().to(at::kCPU);
  if (levels.scalar_type() != at::kByte) {
    levels = levels.to(at::kFloat).nan_to_num(0, 0, 0);
    const auto low = levels.min().item<float>(), high = levels.max().item<float>();
    constexpr float kRounding = 1e-3F;  // of an image that was normalized and is not any more
    const bool is_shown_as_it_is = low >= -kRounding && high <= 1 + kRounding;
    if (!is_shown_as_it_is) levels = (levels - low) / std::max(high - low, 1e-12F);
    levels = (levels * 255).round().clamp(0, 255).to(at::kByte);
  }
  if (levels.size(0) != 1 && levels.size(0) != 3)
    levels = levels.to(at::kFloat).mean(0, /*keepdim=*/true).to(at::kByte);
  return levels.expand({3, levels.size(1), levels.size(2)}).permute({1, 2, 0}).contiguous();
}

// The classes of one sample: 0-dim, or [H, W]; int64 on the CPU. `scores` is [C], [C, H, W] or class numbers already.
at::Tensor to_classes(const at::Tensor& scores, bool regions) {
  const int64_t class_dims = regions ? 2 : 0;
  at::Tensor classes = scores.detach();
  if (classes.is_floating_point() && classes.dim() == class_dims + 1) {
    classes = classes.size(0) == 1 ? classes.select(0, 0).gt(0) : at::argmax(classes, 0);
  }
  if (classes.is_floating_point() || classes.dim() != class_dims) {
    fail(c10::str("found a prediction or target of shape ", scores.sizes(), " and type ", scores.scalar_type(),
                  " for one sample, expected scores [classes", regions ? ", H, W" : "", "] or class numbers"));
  }
  return classes.to(at::kCPU, at::kLong);
}

// Class numbers, a distribution over the classes, or 0 and 1 of a single one. Other numbers are those of a regression:
// their largest is no class.
at::Tensor target_classes(const at::Tensor& target, bool regions) {
  if (target.is_floating_point() && target.dim() == (regions ? 3 : 1)) {
    const at::Tensor sums = target.size(0) == 1 ? target.eq(0).logical_or(target.eq(1)).to(at::kFloat) : target.sum(0);
    constexpr double kRounding = 1e-3;
    if (!target.ge(0).all().item<bool>() || !sums.sub(1).abs().le(kRounding).all().item<bool>()) {
      fail("found a target of numbers that name no class, as a regression has, expected classes");
    }
  }
  return to_classes(target, regions);
}

class SamplePainter {
 public:
  explicit SamplePainter(const SamplePainterOptions& options)
      : options_(options), palette_(palette_tensor(options.palette)) {}

  Painting operator()(const Batch& batch, const NamedTensors& outputs, int64_t sample) const;

 private:
  at::Tensor colours_of(const at::Tensor& classes) const;
  Painting paint_regions(const at::Tensor& image, const at::Tensor& truth, const at::Tensor& predicted) const;
  Painting paint_class(const at::Tensor& image, const at::Tensor& truth, const at::Tensor& predicted) const;
  at::Tensor zoomed(const at::Tensor& picture) const;

  SamplePainterOptions options_;
  at::Tensor palette_;  // uint8 [classes, 3]
};

at::Tensor SamplePainter::colours_of(const at::Tensor& classes) const {
  const at::Tensor ignored = classes.eq(options_.ignore_index);
  const at::Tensor used = classes.masked_fill(ignored, 0);
  const auto low = used.min().item<int64_t>(), high = used.max().item<int64_t>();
  if (low < 0 || high >= palette_.size(0)) {
    throw DataError(c10::str("[SamplePainter] found class ", low < 0 ? low : high, ", expected 0 to ",
                             palette_.size(0) - 1, "; give the palette a colour for it, or set ignore_index"));
  }
  std::vector<int64_t> shape = used.sizes().vec();
  shape.push_back(3);
  const at::Tensor colours = palette_.index_select(0, used.reshape({-1})).view(shape);
  return at::where(ignored.unsqueeze(-1), at::full({}, 255, palette_.options()), colours);
}

at::Tensor SamplePainter::zoomed(const at::Tensor& picture) const {
  int64_t factor = options_.zoom;
  if (factor == 0) factor = std::max<int64_t>(1, (kSmallest + picture.size(0) - 1) / picture.size(0));
  return picture.repeat_interleave(factor, 0).repeat_interleave(factor, 1);
}

Painting SamplePainter::paint_regions(const at::Tensor& image, const at::Tensor& truth,
                                      const at::Tensor& predicted) const {
  std::vector<at::Tensor> panels = {zoomed(image)};
  for (const at::Tensor& classes : {truth, predicted}) {
    if (!classes.defined()) continue;
    if (classes.sizes() != image.sizes().slice(0, 2)) {
      fail(c10::str("found classes of shape ", classes.sizes(), " for an image of ", image.sizes().slice(0, 2),
                    " pixels, expected as many"));
    }
    const at::Tensor mixed =
        image.to(at::kFloat) * (1 - options_.alpha) + colours_of(classes).to(at::kFloat) * options_.alpha;
    panels.push_back(filled(panels[0].size(0), kGap, kWhite));
    panels.push_back(zoomed(mixed.round().to(at::kByte)));
  }
  return {at::cat(panels, 1).contiguous(),
          truth.defined() ? "Left to right: image, target, prediction." : "Left to right: image, prediction."};
}

Painting SamplePainter::paint_class(const at::Tensor& image, const at::Tensor& truth,
                                    const at::Tensor& predicted) const {
  const at::Tensor panel = zoomed(image);
  const int64_t height = panel.size(0), width = panel.size(1);
  const bool known = truth.defined();
  const Colour frame = !known ? kGrey : truth.item<int64_t>() == predicted.item<int64_t>() ? kGreen : kRed;
  at::Tensor picture = filled(height + kSwatch + 2 * kGap, width + 2 * kGap, frame);
  picture.narrow(0, kGap, height).narrow(1, kGap, width).copy_(panel);
  const at::Tensor strip = picture.narrow(0, kGap + height, kSwatch).narrow(1, kGap, width);
  if (known) strip.narrow(1, 0, width / 2).copy_(colours_of(truth));
  strip.narrow(1, width / 2, width - width / 2).copy_(colours_of(predicted));
  return {picture, known ? "Frame: green if the class is right, red if not. Below the image: the colour of the target "
                           "on the left, that of the prediction on the right."
                         : "Below the image, on the right: the colour of the predicted class."};
}

Painting SamplePainter::operator()(const Batch& batch, const NamedTensors& outputs, int64_t sample) const {
  const at::Tensor* prediction = find(outputs, options_.prediction);
  if (prediction == nullptr || prediction->dim() < 1) {
    fail("found no '" + options_.prediction + "' among the outputs of validation, expected scores of classes");
  }
  if (!batch.has(options_.image) || batch[options_.image].dim() != 4) {
    fail("found no '" + options_.image + "' of shape [N, C, H, W] in the batch, expected one");
  }
  const at::Tensor image = to_rgb(batch[options_.image].select(0, sample));
  const bool regions = prediction->dim() >= 3;
  const at::Tensor predicted = to_classes(prediction->select(0, sample), regions);
  at::Tensor truth;
  if (batch.has(options_.target)) truth = target_classes(batch[options_.target].select(0, sample), regions);
  return regions ? paint_regions(image, truth, predicted) : paint_class(image, truth, predicted);
}

}  // namespace

VisualizationHookOptions::Painter sample_painter(const SamplePainterOptions& options) { return SamplePainter(options); }

}  // namespace duet
