#include "cli/find/lr_chart.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <ATen/ops/full.h>
#include "cli/runs/text_columns.h"

namespace duet {

namespace {

using Colour = std::array<uint8_t, 3>;
constexpr Colour kBlack = {0, 0, 0}, kGrey = {225, 225, 225}, kBlue = {30, 90, 200}, kRed = {210, 30, 30},
                 kGreen = {0, 150, 60};
constexpr int64_t kWidth = 720, kHeight = 420, kLeft = 84, kRight = 16, kTop = 16, kBottom = 32;

// Of 3 x 5 dots each, in rows from the top, the left one highest.
constexpr std::string_view kLetters = "0123456789.-e+";
constexpr std::array<int, kLetters.size()> kDots = {075557, 026227, 071747, 071717, 055711, 074717, 074757,
                                                    071111, 075757, 075717, 000002, 000700, 025743, 002720};

struct Point {
  double x, y;
};

class Canvas {
 public:
  void dot(int64_t x, int64_t y, const Colour& colour) {
    if (x < 0 || x >= kWidth || y < 0 || y >= kHeight) return;
    std::copy(colour.begin(), colour.end(), pixels_.mutable_data_ptr<uint8_t>() + 3 * (y * kWidth + x));
  }
  void line(Point from, Point to, const Colour& colour) {
    const double length = std::max({std::abs(to.x - from.x), std::abs(to.y - from.y), 1.0});
    for (double i = 0; i <= length; ++i) {
      dot(std::lround(from.x + (to.x - from.x) * i / length), std::lround(from.y + (to.y - from.y) * i / length),
          colour);
    }
  }
  // Its right edge at `x`, its middle at `y`.
  void text(const std::string& text, int64_t x, int64_t y) {
    constexpr int64_t kDot = 2;
    x -= 4 * kDot * std::ssize(text);
    for (const char letter : text) {
      const std::size_t at = kLetters.find(letter);
      for (int64_t i = 0; at != std::string_view::npos && i < 15 * kDot * kDot; ++i) {
        const int64_t column = i % (3 * kDot), row = i / (3 * kDot);
        if ((kDots[at] >> (14 - 3 * (row / kDot) - column / kDot) & 1) != 0) dot(x + column, y - 5 + row, kBlack);
      }
      x += 4 * kDot;
    }
  }
  const at::Tensor& pixels() const { return pixels_; }

 private:
  at::Tensor pixels_ = at::full({kHeight, kWidth, 3}, 255, at::kByte);
};

}  // namespace

at::Tensor lr_chart(const LrCurve& curve) {
  Canvas canvas;
  const double first = std::log10(curve.lr.front()), decades = std::log10(curve.lr.back()) - first;
  // The last ones, where the loss runs away, would press the others flat; fastai leaves as many out.
  const auto shown = curve.loss.size() > 10 ? curve.loss.size() - 5 : curve.loss.size();
  const auto [least, most] = std::ranges::minmax(std::span(curve.loss).first(shown));
  const double low = least, range = most > least ? most - least : 1;
  const auto x = [&](double lr) { return kLeft + (std::log10(lr) - first) / decades * (kWidth - kLeft - kRight); };
  const auto y = [&](double loss) { return kHeight - kBottom - (loss - low) / range * (kHeight - kTop - kBottom); };
  for (double power = std::ceil(first - 1e-9); power <= first + decades + 1e-9; ++power) {
    const double at = x(std::pow(10, power));
    canvas.line({at, kTop}, {at, kHeight - kBottom}, kGrey);
    canvas.text("1e" + number_text(power + 0.0, "%.0f"), std::lround(at) + 16, kHeight - kBottom + 14);
  }
  for (int i = 0; i <= 4; ++i) {
    const double loss = low + range * i / 4;
    canvas.line({kLeft, y(loss)}, {kWidth - kRight, y(loss)}, kGrey);
    canvas.text(number_text(loss, "%.4g"), kLeft - 8, std::lround(y(loss)));
  }
  for (const auto& [lr, colour] : {std::pair(curve.steepest, kRed), {curve.valley, kGreen}}) {
    if (lr) canvas.line({x(*lr), kTop}, {x(*lr), kHeight - kBottom}, colour);
  }
  for (std::size_t i = 1; i < curve.lr.size(); ++i) {
    for (const int thick : {0, 1}) {
      canvas.line({x(curve.lr[i - 1]), y(curve.loss[i - 1]) + thick}, {x(curve.lr[i]), y(curve.loss[i]) + thick},
                  kBlue);
    }
  }
  return canvas.pixels();
}

}  // namespace duet
