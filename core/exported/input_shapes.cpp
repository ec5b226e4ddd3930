#include "core/exported/input_shapes.h"
#include <algorithm>
#include <cmath>
#include <set>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet::exported {

namespace {

constexpr const char* kWayOut = "; export again with dynamic_shapes that allow it";

// The symbol that the expression is, if it is nothing else.
std::optional<std::string> symbol_of(const Expression& expression) {
  if (expression.variables().size() != 1) return std::nullopt;
  const std::string& name = expression.variables().front();
  for (const int64_t probe : {2, 7}) {
    if (expression.value({{name, probe}}) != static_cast<double>(probe)) return std::nullopt;
  }
  return name;
}

// The number for which a linear expression of one symbol has this value.
std::optional<int64_t> solved(const Expression& expression, double value) {
  const std::string& name = expression.variables().front();
  const auto at = [&](int64_t x) { return expression.value({{name, x}}); };
  const auto zero = at(0), one = at(1);
  if (!zero || !one || *zero == *one) return std::nullopt;
  const auto x = std::llround((value - *zero) / (*one - *zero));
  return at(x) == value ? std::optional<int64_t>(x) : std::nullopt;
}

bool is_outside(const Range& range, double size) {
  // As Python has it: a lower bound of 2 says that the code was specialised for 0 and 1, which may work nevertheless.
  constexpr int64_t kSpecialised = 2;
  return (range.min && *range.min > kSpecialised && size < static_cast<double>(*range.min)) ||
         (range.max && size > static_cast<double>(*range.max));
}

std::string range_text(const Range& range) {
  const std::string least = c10::str(range.min.value_or(0));
  return range.max ? least + " to " + c10::str(*range.max) : "at least " + least;
}

[[noreturn]] void refuse(const std::string& what) { throw StepError(what + kWayOut); }

}  // namespace

InputShapes::InputShapes(const Program& program) {
  std::set<std::string> known;
  for (const UserInput& input : program.inputs) {
    if (!input.is_tensor) continue;
    Input added{input.name, {}};
    for (const std::string& text : input.sizes) {
      std::optional<Expression> expression = Expression::parse(text);
      const std::optional<std::string> symbol = expression ? symbol_of(*expression) : std::nullopt;
      const std::string variable = c10::str(input.python, ".size()[", added.sizes.size(), "]");
      known.insert(variable);
      added.sizes.push_back({symbol.value_or(text), variable, std::move(expression)});
    }
    inputs_.push_back(std::move(added));
  }
  for (const Range& range : program.ranges) {
    auto expression = Expression::parse(range.expression);
    if (expression) ranges_.push_back({range, std::move(*expression), place_of(range.expression)});
  }
  for (const std::string& guard : program.guards) {
    auto expression = Expression::parse(guard);
    const bool is_known = expression && std::ranges::all_of(expression->variables(), [&](const std::string& name) {
                            return known.count(name) > 0;
                          });
    if (is_known) {
      guards_.emplace_back(guard, std::move(*expression));
    } else {
      unchecked_.push_back(guard);
    }
  }
}

// The first dimension of this size.
std::string InputShapes::place_of(const std::string& text) const {
  for (const Input& input : inputs_) {
    const auto found = std::ranges::find(input.sizes, text, &Size::text);
    if (found == input.sizes.end()) continue;
    return c10::str("dimension ", found - input.sizes.begin(), " of the input '", input.name, "'");
  }
  return "the size " + text;
}

void InputShapes::check_size(const Input& input, std::size_t dimension, int64_t size, Values& values) const {
  const auto& [text, variable, expression] = input.sizes[dimension];
  values[variable] = size;
  if (!expression || expression->variables().size() > 1) return;
  const auto place = [&] { return c10::str("dimension ", dimension, " of the input '", input.name, "' is ", size); };
  if (const std::optional<double> expected = expression->value(values)) {
    if (*expected == static_cast<double>(size)) return;
    refuse(c10::str(place(), ", expected ", *expected,
                    expression->variables().empty() ? " as it was exported" : ", as in another input"));
  }
  const std::optional<int64_t> solution = solved(*expression, static_cast<double>(size));
  if (!solution) refuse(c10::str(place(), ", expected a size of the form ", text));
  values[expression->variables().front()] = *solution;
}

void InputShapes::check(const std::vector<at::Tensor>& tensors) const {
  Values values;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Input& input = inputs_[i];
    if (tensors[i].dim() != static_cast<int64_t>(input.sizes.size())) {
      refuse(c10::str("the input '", input.name, "' has the shape ", tensors[i].sizes(), ", expected ",
                      input.sizes.size(), " dimensions"));
    }
    for (std::size_t k = 0; k < input.sizes.size(); ++k) {
      check_size(input, k, tensors[i].size(static_cast<int64_t>(k)), values);
    }
  }
  for (const auto& [range, expression, place] : ranges_) {
    const std::optional<double> size = expression.value(values);
    if (size && is_outside(range, *size)) refuse(c10::str(place, " is ", *size, ", expected ", range_text(range)));
  }
  for (const auto& [text, guard] : guards_) {
    if (guard.value(values) == 0.0) refuse("the shapes of the inputs do not meet the export's condition " + text);
  }
}

}  // namespace duet::exported
