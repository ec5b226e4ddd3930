#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "core/exported/expression.h"

namespace duet::exported {

// The shapes that a program was exported for: fixed sizes, dynamic ones with their ranges, and the guards between them.
class InputShapes {
 public:
  explicit InputShapes(const Program& program);

  // Throws StepError that names the input, the dimension, its size and what was exported. `tensors`: the program's
  // tensor inputs.
  void check(const std::vector<at::Tensor>& tensors) const;
  // Guards that this class does not understand.
  const std::vector<std::string>& unchecked() const { return unchecked_; }

 private:
  struct Size {
    std::string text;      // as Python prints it
    std::string variable;  // as guards call it: "L['x'].size()[0]"
    std::optional<Expression> expression;
  };
  struct Input {
    std::string name;
    std::vector<Size> sizes;
  };
  struct Bounds {
    Range range;
    Expression expression;
    std::string place;  // "dimension 0 of the input 'x'"
  };
  using Values = Expression::Values;

  std::string place_of(const std::string& text) const;
  void check_size(const Input& input, std::size_t dimension, int64_t size, Values& values) const;

  std::vector<Input> inputs_;
  std::vector<Bounds> ranges_;
  std::vector<std::pair<std::string, Expression>> guards_;
  std::vector<std::string> unchecked_;
};

}  // namespace duet::exported
