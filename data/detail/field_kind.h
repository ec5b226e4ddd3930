#pragma once

#include <string>

namespace duet {

// What a field of a table says, whatever its column holds.
enum class FieldKind {
  kMissing,  // nothing, NA, null, ?, -
  kNumber,   // 1.5, +5, 1e-3
  kSpelled,  // a number that is written in another way: 1,5 or $3, 5 % or inf
  kMeasure,  // one with a unit: 29 kg, 2h 50m
  kDate,     // or a time
  kText,
};

struct Field {
  FieldKind kind = FieldKind::kText;
  std::string unit{};  // of a measure
};

Field read_field(const std::string& text);

}  // namespace duet
