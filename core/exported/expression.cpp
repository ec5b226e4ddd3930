#include "core/exported/expression.h"
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <exception>
#include <string_view>
#include <utility>
#include "base/detail/text.h"
#include "core/exported/ops.h"

namespace duet::exported {

namespace {

// Operators between two values. Those of a higher level bind stronger.
struct Operator {
  const char* word;
  int level;
};
constexpr int kComparison = 2;
constexpr Operator kOperators[] = {{"or", 0}, {"and", 1}, {"==", 2}, {"!=", 2}, {"<=", 2}, {">=", 2}, {"<", 2},
                                   {">", 2},  {"+", 3},   {"-", 3},  {"*", 4},  {"//", 4}, {"/", 4},  {"%", 4}};

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_of_name(char c) { return is_letter(c) || c == '.'; }

}  // namespace

// By precedence climbing. Anything unknown leaves `failed_` set.
class Expression::Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::optional<Term> run() {
    Term term = binary(0);
    skip_spaces();
    if (failed_ || at_ != text_.size()) return std::nullopt;
    return term;
  }

  std::vector<std::string> variables;

 private:
  static constexpr int kMaxDepth = 64, kMaxCalls = 1000;

  std::string_view rest() const { return text_.substr(at_); }

  void skip_spaces() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  bool take(std::string_view word) {
    skip_spaces();
    const bool is_part = is_letter(word.back()) && rest().size() > word.size() && is_letter(rest()[word.size()]);
    if (is_part || !rest().starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  const Operator* take_operator(int least) {
    const auto found = std::ranges::find_if(
        kOperators, [&](const Operator& o) { return !failed_ && o.level >= least && take(o.word); });
    return found == std::ranges::end(kOperators) ? nullptr : found;
  }

  Term fail() {
    failed_ = true;
    return {};
  }

  Term call(const std::string& name, std::vector<Term> of) {
    const bool is_of_numbers = !of.empty() && name != "torch.sym_ite" && !name.starts_with("torch.ops.");
    const SymbolicOp op = is_of_numbers ? symbolic_op(name) : nullptr;
    if (op == nullptr || ++calls_ > kMaxCalls) return fail();
    return {.op = op, .of = std::move(of)};
  }

  Term variable(std::string_view name) {
    variables.emplace_back(name);
    return {.variable = std::string(name)};
  }

  // What operators of this level and above join. a < b <= c is a < b and b <= c.
  Term binary(int least) {
    Term left = unary();
    std::optional<Term> compared;  // to the left of the next comparison, where one came before
    while (const Operator* o = take_operator(least)) {
      Term right = binary(o->level + 1);
      if (o->level != kComparison || !compared) {
        left = call(o->word, {std::move(left), right});
      } else {
        left = call("and", {std::move(left), call(o->word, {std::move(*compared), right})});
      }
      compared = o->level == kComparison ? std::optional(std::move(right)) : std::nullopt;
    }
    return left;
  }

  Term unary() {
    if (++depth_ > kMaxDepth) return fail();
    Term term;
    if (take("not")) {
      term = call("not", {binary(kComparison)});
    } else if (take("-")) {
      term = call("_operator.neg", {unary()});
    } else {
      term = primary();
      if (take("**")) term = call("**", {std::move(term), unary()});
    }
    --depth_;
    return term;
  }

  Term primary() {
    if (failed_) return fail();
    if (take("(")) {
      Term inner = binary(0);
      return take(")") ? inner : fail();
    }
    if (rest().starts_with("L[")) return size_of_input();
    const auto length = std::ranges::find_if_not(rest(), is_of_name) - rest().begin();
    const std::string name(rest().substr(0, static_cast<std::size_t>(length)));
    at_ += name.size();
    if (!name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) != 0) return number(name);
    if (name.empty() || name == "True" || name == "False") return fail();
    if (!take("(")) return variable(name);
    return name == "Symbol" ? symbol() : call(name, arguments());
  }

  Term number(const std::string& text) {
    if (const auto integer = parse_number<int64_t>(text)) return {.number = *integer};
    const auto number = parse_number<double>(text);
    return number ? Term{.number = *number} : fail();
  }

  std::vector<Term> arguments() {
    std::vector<Term> of;
    while (!failed_ && !take(")")) {
      of.push_back(binary(0));
      if (!take(",") && !rest().starts_with(")")) fail();
    }
    return of;
  }

  // L['batch']['x'][0].size()[1]
  Term size_of_input() {
    const std::size_t call = rest().find("].size()[");
    const std::size_t end = call == std::string_view::npos ? call : rest().find(']', call + 9);
    if (end == std::string_view::npos || rest().substr(0, call).find_first_of(" ().") != std::string_view::npos) {
      return fail();
    }
    const std::string_view name = rest().substr(0, end + 1);
    at_ += name.size();
    return variable(name);
  }

  // Symbol('s0', positive=True, integer=True), from its first quote on.
  Term symbol() {
    const std::string_view all = rest();
    const std::size_t quote = all.empty() ? std::string_view::npos : all.find(all.front(), 1);
    const std::size_t end = all.find(')');
    if (quote == std::string_view::npos || end == std::string_view::npos || end < quote) return fail();
    at_ += end + 1;
    return variable(all.substr(1, quote - 1));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0, calls_ = 0;
  bool failed_ = false;
};

std::optional<Expression> Expression::parse(const std::string& text) {
  Parser parser(text);
  std::optional<Term> term = parser.run();
  if (!term) return std::nullopt;
  Expression expression;
  expression.term_ = std::move(*term);
  expression.variables_ = std::move(parser.variables);
  std::ranges::sort(expression.variables_);
  const auto repeated = std::ranges::unique(expression.variables_);
  expression.variables_.erase(repeated.begin(), repeated.end());
  return expression;
}

c10::IValue Expression::value(const Term& term, const Values& values) {
  if (term.op == nullptr) return term.variable.empty() ? term.number : c10::IValue(values.at(term.variable));
  torch::jit::Stack of;
  for (const Term& one : term.of) of.push_back(value(one, values));
  if (of.size() <= 2) return term.op(of);
  c10::IValue result = of.front();  // of any number, as Max(a, b, c)
  for (std::size_t i = 1; i < of.size(); ++i) result = term.op({result, of[i]});
  return result;
}

std::optional<double> Expression::value(const Values& values) const {
  if (!std::ranges::all_of(variables_, [&](const std::string& name) { return values.contains(name); })) return {};
  try {
    const double result = value(term_, values).toScalar().toDouble();
    return std::isfinite(result) ? std::optional(result) : std::nullopt;
  } catch (const std::exception&) {  // a division by 0, a number beyond 64 bits
    return std::nullopt;
  }
}

}  // namespace duet::exported
