#include "core/exported/expression.h"
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>
#include "base/detail/text.h"

namespace duet::exported {

namespace {

using Fold = double (*)(double, double);
using Function = double (*)(double);

double floor_div(double a, double b) { return std::floor(a / b); }
double modulo(double a, double b) { return a - b * std::floor(a / b); }
double smaller(double a, double b) { return std::min(a, b); }
double larger(double a, double b) { return std::max(a, b); }
double sum(double a, double b) { return a + b; }
double product(double a, double b) { return a * b; }
double quotient(double a, double b) { return a / b; }
double power(double a, double b) { return std::pow(a, b); }
double truncated(double x) { return std::trunc(x); }
double floored(double x) { return std::floor(x); }
double ceiled(double x) { return std::ceil(x); }
double itself(double x) { return x; }

// Operators and functions of two arguments or more, by Python's and SymPy's names.
Fold fold_of(const std::string& name) {
  static const std::map<std::string, Fold> known = {
      {"+", sum},
      {"Add", sum},
      {"-", [](double a, double b) { return a - b; }},
      {"*", product},
      {"Mul", product},
      {"/", quotient},
      {"IntTrueDiv", quotient},
      {"FloatTrueDiv", quotient},
      {"//", floor_div},
      {"FloorDiv", floor_div},
      {"%", modulo},
      {"Mod", modulo},
      {"PythonMod", modulo},
      {"**", power},
      {"Pow", power},
      {"PowByNatural", power},
      {"==", [](double a, double b) { return static_cast<double>(a == b); }},
      {"!=", [](double a, double b) { return static_cast<double>(a != b); }},
      {"<", [](double a, double b) { return static_cast<double>(a < b); }},
      {"<=", [](double a, double b) { return static_cast<double>(a <= b); }},
      {">", [](double a, double b) { return static_cast<double>(a > b); }},
      {">=", [](double a, double b) { return static_cast<double>(a >= b); }},
      {"and", [](double a, double b) { return static_cast<double>(a != 0 && b != 0); }},
      {"or", [](double a, double b) { return static_cast<double>(a != 0 || b != 0); }},
      {"min", smaller},
      {"Min", smaller},
      {"torch.sym_min", smaller},
      {"max", larger},
      {"Max", larger},
      {"torch.sym_max", larger}};
  const auto found = known.find(name);
  return found == known.end() ? nullptr : found->second;
}

Function function_of(const std::string& name) {
  static const std::map<std::string, Function> known = {{"-", [](double x) { return -x; }},
                                                        {"not", [](double x) { return static_cast<double>(x == 0); }},
                                                        {"abs", [](double x) { return std::abs(x); }},
                                                        {"math.sqrt", [](double x) { return std::sqrt(x); }},
                                                        {"math.trunc", truncated},
                                                        {"TruncToInt", truncated},
                                                        {"int", truncated},
                                                        {"math.floor", floored},
                                                        {"FloorToInt", floored},
                                                        {"math.ceil", ceiled},
                                                        {"CeilToInt", ceiled},
                                                        {"float", itself},
                                                        {"torch.sym_float", itself},
                                                        {"ToFloat", itself},
                                                        {"Identity", itself},
                                                        {"Integer", itself}};
  const auto found = known.find(name);
  return found == known.end() ? nullptr : found->second;
}

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
  // From the weakest to the strongest.
  static constexpr std::array<std::array<std::string_view, 6>, 5> kLevels = {
      {{"or"}, {"and"}, {"==", "!=", "<=", ">=", "<", ">"}, {"+", "-"}, {"*", "//", "/", "%"}}};

  static constexpr std::size_t kComparisons = 2;

  void skip_spaces() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  static bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

  bool take(std::string_view word) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(word)) return false;
    const std::size_t end = at_ + word.size();
    if (is_letter(word.back()) && end < text_.size() && is_letter(text_[end])) return false;
    if (word == "*" && text_.substr(at_).starts_with("**")) return false;
    at_ = end;
    return true;
  }

  Term fail() {
    failed_ = true;
    return {};
  }

  Term call(const std::string& name, std::vector<Term> of) {
    Term term{.fold = of.size() > 1 ? fold_of(name) : nullptr,
              .function = of.size() == 1 ? function_of(name) : nullptr};
    if ((term.fold == nullptr && term.function == nullptr) || ++calls_ > kMaxCalls) return fail();
    term.of = std::move(of);
    return term;
  }

  Term binary(std::size_t level) {
    if (level == kLevels.size()) return unary();
    if (level == kComparisons && take("not")) return negation();
    if (level == kComparisons) return comparison();
    Term left = binary(level + 1);
    while (!failed_) {
      const std::string word = take_operator(level);
      if (word.empty()) break;
      Term right = binary(level + 1);
      left = call(word, {std::move(left), std::move(right)});
    }
    return left;
  }

  std::string take_operator(std::size_t level) {
    const auto& words = kLevels[level];
    const auto word =
        std::find_if(words.begin(), words.end(), [&](std::string_view w) { return !w.empty() && take(w); });
    return word == words.end() ? std::string() : std::string(*word);
  }

  // a < b <= c is a < b and b <= c.
  Term comparison() {
    Term left = binary(kComparisons + 1);
    std::optional<Term> all;
    for (std::string word = take_operator(kComparisons); !failed_ && !word.empty();
         word = take_operator(kComparisons)) {
      Term right = binary(kComparisons + 1);
      Term next = call(word, {std::move(left), right});
      all = all ? call("and", {std::move(*all), std::move(next)}) : std::move(next);
      left = std::move(right);
    }
    return all ? std::move(*all) : left;
  }

  Term negation() {
    if (++depth_ > kMaxDepth) return fail();
    Term term = call("not", {binary(kComparisons)});
    --depth_;
    return term;
  }

  Term unary() {
    if (++depth_ > kMaxDepth) return fail();
    Term term;
    if (take("-")) {
      term = call("-", {unary()});
    } else {
      term = primary();
      if (take("**")) term = call("**", {std::move(term), unary()});
    }
    --depth_;
    return term;
  }

  Term primary() {
    skip_spaces();
    if (failed_ || at_ == text_.size()) return fail();
    if (take("(")) {
      Term inner = binary(0);
      return take(")") ? inner : fail();
    }
    const char c = text_[at_];
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) return number();
    if (!is_letter(c)) return fail();
    return text_.substr(at_).starts_with("L[") ? size_of_input() : named();
  }

  Term number() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || text_[at_] == '.')) ++at_;
    const auto value = parse_number<double>(text_.substr(begin, at_ - begin));
    return value ? Term{.number = *value} : fail();
  }

  // L['batch']['x'][0].size()[1]
  Term size_of_input() {
    const std::string_view rest = text_.substr(at_);
    const std::size_t call = rest.find("].size()[");
    const std::size_t end = call == std::string_view::npos ? call : rest.find(']', call + 9);
    if (end == std::string_view::npos || rest.substr(0, call).find_first_of(" ().") != std::string_view::npos)
      return fail();
    at_ += end + 1;
    return variable(std::string(rest.substr(0, end + 1)));
  }

  Term variable(std::string name) {
    variables.push_back(name);
    return {.variable = std::move(name)};
  }

  // A symbol, a function's call, or one of SymPy's constructors.
  Term named() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || text_[at_] == '.')) ++at_;
    std::string name(text_.substr(begin, at_ - begin));
    if (!take("(")) return name == "True" || name == "False" ? fail() : variable(std::move(name));
    if (name == "Symbol") return symbol();
    std::vector<Term> of;
    while (!failed_ && !take(")")) {
      of.push_back(binary(0));
      if (!take(",") && !text_.substr(at_).starts_with(")")) return fail();
    }
    return call(name, std::move(of));
  }

  // Symbol('s0', positive=True, integer=True)
  Term symbol() {
    const std::string_view rest = text_.substr(at_);
    const std::size_t quote = rest.empty() ? std::string_view::npos : rest.find(rest.front(), 1);
    const std::size_t end = rest.find(')');
    if (quote == std::string_view::npos || end == std::string_view::npos || end < quote) return fail();
    at_ += end + 1;
    return variable(std::string(rest.substr(1, quote - 1)));
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

std::optional<double> Expression::value(const Term& term, const Values& values) {
  if (term.of.empty()) {
    if (term.variable.empty()) return term.number;
    const auto found = values.find(term.variable);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<double> result = value(term.of.front(), values);
  if (result && term.function != nullptr) result = term.function(*result);
  for (std::size_t i = 1; i < term.of.size() && result; ++i) {
    const std::optional<double> next = value(term.of[i], values);
    result = next ? std::optional(term.fold(*result, *next)) : std::nullopt;
  }
  return result && std::isfinite(*result) ? result : std::nullopt;
}

std::optional<double> Expression::value(const Values& values) const { return value(term_, values); }

}  // namespace duet::exported
