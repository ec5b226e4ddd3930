#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

Tensor above_half(const Tensor& x) { return x.abs() + 0.5; }
Tensor inside(const Tensor& x) { return x.tanh() * 0.9; }  // of -1 and 1

void add_named_cases(OpTable& add) {
  const auto of_values = [](const Tensor& result, const Tensor&) { return bounded(result); };
  add.by_name("ceil floor round trunc sign", "m>m", {.end = minus});
  add.by_name("special_entr", "m>m", {above_half, of_values});
  add.by_name("relu6 leaky_relu elu selu celu gelu softplus softshrink hardshrink hardtanh", "m>m", {.end = of_values});
  add.by_name("gelu", "m>m", {.more = {"tanh"}});
  add.by_name("softmax.int log_softmax.int", "m>m", {.end = of_values, .more = {1}});
  add.by_name("threshold", "m>m", {.more = {0.1, -0.2}});
  add.by_name("clamp", "m>m", {.more = {-0.4, 0.7}});
  add.by_name("clamp_min", "m>m", {.more = {-0.1}});
  add.by_name("pow.Tensor_Scalar", "m>m", {above_half, of_values, {1.7}});
  add.by_name("pow.Tensor_Tensor float_power.Tensor_Tensor", "mm>m", {above_half, of_values});
  add.by_name("sub.Tensor rsub.Tensor", "mm>m", {.end = of_values});
  add.by_name("lerp.Scalar", "mm>m", {.more = {0.3}});
  add.by_name("isclose", "mm>b", {.more = {0.1, 0.3}});
  add.by_name("lerp.Tensor addcmul addcdiv clamp.Tensor", "mmm>m", {above_half, of_values});
  add.by_name("where.self", "bmm>m");
  add.by_name("abs neg sin cos tanh erf erfc atan asinh sinc frac", "m>m");
  add.by_name("relu silu mish sigmoid hardswish hardsigmoid log_sigmoid", "m>m");
  add.by_name("tan exp exp2 expm1 square erfinv asin acos atanh sinh cosh i0", "m>m", {inside});
  add.by_name("log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma", "m>m", {above_half});
  add.by_name("maximum minimum fmax fmin copysign.Tensor", "mm>m");
  add.by_name("fmod.Tensor remainder.Tensor atan2", "mm>m", {above_half});
  add.by_name("mul.Tensor logaddexp", "mm>m", {.end = of_values});
  add.by_name("div.Tensor hypot", "mm>m", {above_half, of_values});
  add.by_name("gt.Tensor le.Tensor ne.Tensor", "mm>b");
  add.by_name("signbit", "m>b");
  add.by_name("logical_and logical_or logical_xor bitwise_and.Tensor", "bb>b");
  add.by_name("logical_not", "b>b");
}

void add_unary_cases(OpTable& add) {
  add.plain("acosh", "m>m", [](X x) { return (above_half(x[0]) + 1).acosh(); });
  add.plain("logit", "m>m", [](X x) { return (x[0].sigmoid() * 0.9 + 0.05).logit(); });
  add.plain("sgn", "m>m", [](X x) { return x[0].sgn() * x[0].tanh(); });
  add.plain("nan_to_num", "m>m", [](X x) { return (x[0] / x[0].relu()).nan_to_num(0.25, 1, -1); });
  add.plain("xlogy", "m>m", [](X x) { return bounded(torch::xlogy(x[0].sigmoid(), above_half(x[0]))); });
}

void add_activation_cases(OpTable& add) {
  add.plain("gelu_tanh_of_layouts_and_types", "m>m", [](X x) {
    Tensor y = torch::gelu(x[0].t(), "tanh").t() + torch::gelu(x[0].to(at::kDouble), "tanh").to(at::kFloat);
    y = y + torch::gelu(x[0].to(at::kBFloat16), "tanh").to(at::kFloat) + torch::gelu(x[0], "none");
    return bounded(y + torch::gelu(torch::gelu(x[0], "tanh").slice(1, 0, kColumns, 3), "tanh").sum());
  });
  add.plain("gelu_tanh_of_a_changed_value", "m>m", [](X x) {
    Tensor y = x[0] * 3;
    const Tensor before = torch::gelu(y.detach(), "tanh");
    y.mul_(0.5);
    return bounded(before + torch::gelu(y, "tanh"));
  });
  add.plain("glu", "m>m", [](X x) { return torch::glu(torch::cat({x[0], x[0].flip(1)}, 1), 1); });
  add.plain("softmax_of_columns", "m>m", [](X x) { return x[0].softmax(0) * 4; });
  add.weighted("prelu", "m>m", {kColumns}, [](X x, const Tensor& slope) { return torch::prelu(x[0], slope); });
}

void add_binary_cases(OpTable& add) {
  add("add_alpha", "mm>m", [](Site& site) -> Apply {
    return [alpha = 0.25 * static_cast<double>(site.number(-6, 6))](X x) { return bounded(x[0].add(x[1], alpha)); };
  });
  add.plain("mul_of_itself", "m>m", [](X x) { return bounded(x[0] * x[0].detach() + x[0] * x[0]); });
  add.plain("div_floor", "mm>m", [](X x) { return bounded(torch::div(x[0], above_half(x[1]), "floor") + x[0]); });
  add.plain("number_pow", "m>m", [](X x) { return torch::pow(2.0, x[0].tanh()); });
  add.plain("where_number", "bm>m", [](X x) { return torch::where(x[0], x[1], 0.5); });
  add.plain("heaviside", "mm>m", [](X x) { return torch::heaviside(x[0].detach(), x[1].detach()) + x[0]; });
  add.plain("ldexp", "m>m", [](X x) { return bounded(torch::ldexp(x[0], torch::ones({kColumns}, at::kInt))); });

  // masks
  add.plain("isfinite", "m>b", [](X x) { return torch::isfinite(x[0]).logical_and(x[0] > 0); });
}

}  // namespace

void add_pointwise_cases(OpTable& add) {
  add_named_cases(add);
  add_unary_cases(add);
  add_activation_cases(add);
  add_binary_cases(add);
}

}  // namespace duet::testing::fuzz
