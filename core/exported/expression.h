#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "core/exported/program.h"

namespace duet::exported {

// A Python expression over integers, as torch.export writes sizes ("2*s0", "Mul(Integer(2), Symbol('s0',
// integer=True))") and guards ("L['x'].size()[0] % 2 == 0"): + - * / // % **, comparisons, and, or, not, and the
// functions that symbolic_op() knows.
class Expression {
 public:
  using Values = std::map<std::string, int64_t>;

  // Nothing for text that is no such expression.
  static std::optional<Expression> parse(const std::string& text);

  // Names of variables in it: "s0"; of a size "L['x'].size()[0]".
  const std::vector<std::string>& variables() const { return variables_; }
  // Of a condition 1 or 0. Nothing if a variable has no value, or at a division by 0.
  std::optional<double> value(const Values& values) const;

 private:
  // A function of others, a variable, or a number.
  struct Term {
    SymbolicOp op = nullptr;
    std::vector<Term> of{};
    std::string variable{};
    c10::IValue number{};
  };
  class Parser;
  static c10::IValue value(const Term& term, const Values& values);

  Term term_;
  std::vector<std::string> variables_;
};

}  // namespace duet::exported
