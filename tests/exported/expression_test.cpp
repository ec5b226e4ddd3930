#include "core/exported/expression.h"
#include <optional>
#include <string>
#include <gtest/gtest.h>

namespace duet::exported {
namespace {

struct Case {
  const char* text;
  std::optional<double> value;  // for a = 7, b = 2, L['x'].size()[0] = 12
};

class Expressions : public ::testing::TestWithParam<Case> {};

TEST_P(Expressions, AreThoseOfPython) {
  const std::optional<Expression> expression = Expression::parse(GetParam().text);
  ASSERT_TRUE(expression);
  EXPECT_EQ(expression->value({{"a", 7}, {"b", 2}, {"L['x'].size()[0]", 12}}), GetParam().value);
}

INSTANTIATE_TEST_SUITE_P(All, Expressions,
                         ::testing::Values(Case{"1 + 2 * 3", 7}, Case{"(1 + 2) * 3", 9}, Case{"a - b - 1", 4},
                                           Case{"a // b", 3}, Case{"-a // b", -4}, Case{"-a % b", 1},
                                           Case{"a / b", 3.5}, Case{"b ** 3 ** 2", 512}, Case{"-b ** 2", -4},
                                           Case{"max(1, a, b)", 7}, Case{"min(a, b) == b", 1}, Case{"a != 7", 0},
                                           Case{"not a > 8 and b <= 2", 1}, Case{"a < 3 or b >= 3", 0},
                                           Case{"1 <= b < a", 1}, Case{"9 >= a > b > 3", 0}, Case{"not a == 7", 0},
                                           Case{"math.trunc(-3.5)", -3}, Case{"L['x'].size()[0] % 5", 2},
                                           Case{"(4*L['x'].size()[0]) // 5 >= 9", 1},
                                           Case{"Symbol('a', positive=True, integer=True)", 7},
                                           Case{"Mul(Integer(2), Symbol('a', integer=True))", 14},
                                           Case{"Add(FloorDiv(Symbol('a'), Integer(2)), Integer(-1))", 2},
                                           Case{"a % 0", std::nullopt}, Case{"c + 1", std::nullopt}));

TEST(Expression, IsNothingElse) {
  for (const char* text : {"", "(", "a +", "f(a)", "a b", "a.b()", "'a'", "L['x'].dtype", "1; 2", "a[0]", "import os",
                           "Symbol('a'", "max()"}) {
    EXPECT_FALSE(Expression::parse(text)) << text;
  }
  EXPECT_FALSE(Expression::parse(std::string(100'000, '(')));
  EXPECT_FALSE(Expression::parse(std::string(100'000, '-') + "1"));
  std::string chain = "1", comparisons = "1";
  for (int i = 0; i < 100'000; ++i) chain += "+1", comparisons += "<1";
  EXPECT_FALSE(Expression::parse(chain));
  EXPECT_FALSE(Expression::parse(comparisons));
}

}  // namespace
}  // namespace duet::exported
