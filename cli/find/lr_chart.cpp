#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <ATen/ops/full.h>
#include "cli/find/find.h"
#include "cli/runs/text_columns.h"

namespace duet {

namespace {

using Colour = std::array<uint8_t, 3>;
constexpr Colour kBlack = {0, 0, 0}, kGrey = {225, 225, 225}, kBlue = {30, 90, 200}, kRed = {210, 30, 30},
                 kGreen = {0, 150, 60};
constexpr int64_t kWidth = 720, kHeight = 420, kLeft = 84, kRight = kWidth - 16, kTop = 16, kBottom = kHeight - 32;
// 3 x 5 dots each, in rows from the top, the left one highest.
constexpr std::string_view kLetters = "0123456789.-e+";
constexpr std::array<int, kLetters.size()> kDots = {075557, 026227, 071747, 071717, 055711, 074717, 074757,
                                                    071111, 075757, 075717, 000002, 000700, 025743, 002720};

struct Box {
  int64_t x, y, width, height;
};

void fill(const at::Tensor& pixels, const Box& box, const Colour& colour) {
  const at::Tensor part = pixels.slice(0, box.y, box.y + box.height).slice(1, box.x, box.x + box.width);
  for (int64_t i = 0; i < 3; ++i) part.select(2, i).fill_(colour[static_cast<std::size_t>(i)]);
}

// Its right edge at `x`, its middle at `y`.
void write(const at::Tensor& pixels, const std::string& text, int64_t x, int64_t y) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const int dots = kDots.at(kLetters.find(text[at]));
    for (int64_t i = 0; i < 15; ++i) {
      const int64_t left = x - 8 * static_cast<int64_t>(text.size() - at);
      if ((dots >> (14 - i) & 1) != 0) fill(pixels, {left + 2 * (i % 3), y - 5 + 2 * (i / 3), 2, 2}, kBlack);
    }
  }
}

}  // namespace

at::Tensor lr_chart(const LrCurve& curve) {
  const at::Tensor pixels = at::full({kHeight, kWidth, 3}, 255, at::kByte);
  // The last ones, where the loss runs away, would press the others flat; fastai leaves as many out.
  const std::size_t shown = curve.loss.size() > 10 ? curve.loss.size() - 5 : curve.loss.size();
  const auto [low, high] = std::ranges::minmax(std::span(curve.loss).first(shown));
  const double first = std::log10(curve.lr.front()), decades = std::log10(curve.lr.back()) - first;
  const auto x = [&, first](double lr) { return kLeft + (std::log10(lr) - first) / decades * (kRight - kLeft); };
  const auto y = [low = low, range = high > low ? high - low : 1](double loss) {
    return kBottom - std::min((loss - low) / range, 1.0) * (kBottom - kTop);
  };
  for (double power = std::ceil(first - 1e-9); power <= first + decades + 1e-9; ++power) {
    const int64_t at = std::lround(x(std::pow(10, power)));
    fill(pixels, {at, kTop, 1, kBottom - kTop}, kGrey);
    write(pixels, "1e" + number_text(power + 0.0, "%.0f"), at + 16, kBottom + 14);
  }
  for (const double loss : {low, (low + high) / 2, high}) {
    fill(pixels, {kLeft, std::lround(y(loss)), kRight - kLeft, 1}, kGrey);
    write(pixels, number_text(loss, "%.4g"), kLeft - 8, std::lround(y(loss)));
  }
  for (const auto& [lr, colour] : {std::pair(curve.steepest, kRed), {curve.valley, kGreen}}) {
    if (lr) fill(pixels, {std::lround(x(*lr)), kTop, 1, kBottom - kTop}, colour);
  }
  for (std::size_t i = 1; i < curve.lr.size(); ++i) {
    const double x0 = x(curve.lr[i - 1]), y0 = y(curve.loss[i - 1]), dx = x(curve.lr[i]) - x0,
                 dy = y(curve.loss[i]) - y0;
    const double length = std::max({std::abs(dx), std::abs(dy), 1.0});
    for (double at = 0; at <= length; ++at)
      fill(pixels, {std::lround(x0 + dx * at / length), std::lround(y0 + dy * at / length), 2, 2}, kBlue);
  }
  return pixels;
}

}  // namespace duet
