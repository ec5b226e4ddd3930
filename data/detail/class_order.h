#pragma once

#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include "base/detail/text.h"

namespace duet {

// Numbers by their value, then texts by their letters: class 10 comes after class 9.
struct ByNumberThenText {
  bool operator()(const std::string& a, const std::string& b) const {
    const double first = number_or_infinity(a), second = number_or_infinity(b);
    return std::tie(first, a) < std::tie(second, b);
  }

 private:
  static double number_or_infinity(const std::string& text) {
    const std::optional<double> number = parse_number<double>(text);
    return number && std::isfinite(*number) ? *number : HUGE_VAL;
  }
};

using ClassNames = std::set<std::string, ByNumberThenText>;

}  // namespace duet
