#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

Tensor above_half(const Tensor& x) { return x.abs() + 0.5; }
Tensor inside(const Tensor& x) { return x.tanh() * 0.9; }  // of -1 and 1

void add_unary_cases(OpTable& add) {
  add.plain("abs", "m>m", [](X x) { return x[0].abs(); });
  add.plain("neg", "m>m", [](X x) { return -x[0]; });
  add.plain("sin", "m>m", [](X x) { return x[0].sin(); });
  add.plain("cos", "m>m", [](X x) { return x[0].cos(); });
  add.plain("tan", "m>m", [](X x) { return inside(x[0]).tan(); });
  add.plain("tanh", "m>m", [](X x) { return x[0].tanh(); });
  add.plain("exp", "m>m", [](X x) { return x[0].tanh().exp(); });
  add.plain("exp2", "m>m", [](X x) { return x[0].tanh().exp2(); });
  add.plain("expm1", "m>m", [](X x) { return x[0].tanh().expm1(); });
  add.plain("log", "m>m", [](X x) { return above_half(x[0]).log(); });
  add.plain("log2", "m>m", [](X x) { return above_half(x[0]).log2(); });
  add.plain("log10", "m>m", [](X x) { return above_half(x[0]).log10(); });
  add.plain("log1p", "m>m", [](X x) { return x[0].square().log1p(); });
  add.plain("sqrt", "m>m", [](X x) { return above_half(x[0]).sqrt(); });
  add.plain("rsqrt", "m>m", [](X x) { return above_half(x[0]).rsqrt(); });
  add.plain("reciprocal", "m>m", [](X x) { return above_half(x[0]).reciprocal(); });
  add.plain("square", "m>m", [](X x) { return bounded(x[0].square()); });
  add.plain("erf", "m>m", [](X x) { return x[0].erf(); });
  add.plain("erfc", "m>m", [](X x) { return x[0].erfc(); });
  add.plain("erfinv", "m>m", [](X x) { return inside(x[0]).erfinv(); });
  add.plain("asin", "m>m", [](X x) { return inside(x[0]).asin(); });
  add.plain("acos", "m>m", [](X x) { return inside(x[0]).acos(); });
  add.plain("atan", "m>m", [](X x) { return x[0].atan(); });
  add.plain("sinh", "m>m", [](X x) { return x[0].tanh().sinh(); });
  add.plain("cosh", "m>m", [](X x) { return x[0].tanh().cosh(); });
  add.plain("asinh", "m>m", [](X x) { return x[0].asinh(); });
  add.plain("acosh", "m>m", [](X x) { return (above_half(x[0]) + 1).acosh(); });
  add.plain("atanh", "m>m", [](X x) { return inside(x[0]).atanh(); });
  add.plain("lgamma", "m>m", [](X x) { return bounded(above_half(x[0]).lgamma()); });
  add.plain("digamma", "m>m", [](X x) { return bounded(above_half(x[0]).digamma()); });
  add.plain("sinc", "m>m", [](X x) { return x[0].sinc(); });
  add.plain("i0", "m>m", [](X x) { return bounded(x[0].tanh().i0()); });
  add.plain("logit", "m>m", [](X x) { return (x[0].sigmoid() * 0.9 + 0.05).logit(); });
  add.plain("ceil", "m>m", [](X x) { return x[0].ceil() - x[0]; });
  add.plain("floor", "m>m", [](X x) { return x[0] - x[0].floor(); });
  add.plain("round", "m>m", [](X x) { return x[0].round() * 0.5 - x[0]; });
  add.plain("trunc", "m>m", [](X x) { return x[0] - x[0].trunc(); });
  add.plain("frac", "m>m", [](X x) { return x[0].frac(); });
  add.plain("sign", "m>m", [](X x) { return x[0].sign() * 0.5 + x[0]; });
  add.plain("sgn", "m>m", [](X x) { return x[0].sgn() * x[0].tanh(); });
  add.plain("nan_to_num", "m>m", [](X x) { return (x[0] / x[0].relu()).nan_to_num(0.25, 1, -1); });
  add.plain("xlogy", "m>m", [](X x) { return bounded(torch::xlogy(x[0].sigmoid(), above_half(x[0]))); });
  add.plain("entr", "m>m", [](X x) { return torch::special::entr(above_half(x[0])).tanh(); });
}

void add_activation_cases(OpTable& add) {
  add.plain("relu", "m>m", [](X x) { return torch::relu(x[0]); });
  add.plain("relu6", "m>m", [](X x) { return F::relu6(x[0] * 4); });
  add("leaky_relu", "m>m", [](Site& site) -> Apply {
    return [slope = 0.01 * static_cast<double>(site.number(1, 30))](X x) { return torch::leaky_relu(x[0], slope); };
  });
  add.plain("elu", "m>m", [](X x) { return torch::elu(x[0], 0.7); });
  add.plain("selu", "m>m", [](X x) { return bounded(torch::selu(x[0])); });
  add.plain("celu", "m>m", [](X x) { return torch::celu(x[0], 0.8); });
  add.plain("gelu", "m>m", [](X x) { return torch::gelu(x[0]); });
  add.plain("gelu_tanh", "m>m", [](X x) { return torch::gelu(x[0], "tanh"); });
  add.plain("silu", "m>m", [](X x) { return torch::silu(x[0]); });
  add.plain("mish", "m>m", [](X x) { return torch::mish(x[0]); });
  add.plain("sigmoid", "m>m", [](X x) { return x[0].sigmoid(); });
  add.plain("softplus", "m>m", [](X x) { return bounded(F::softplus(x[0])); });
  add.plain("softsign", "m>m", [](X x) { return F::softsign(x[0]); });
  add.plain("softshrink", "m>m", [](X x) { return torch::softshrink(x[0], 0.2); });
  add.plain("hardshrink", "m>m", [](X x) { return torch::hardshrink(x[0], 0.2); });
  add.plain("tanhshrink", "m>m", [](X x) { return F::tanhshrink(x[0]); });
  add.plain("hardtanh", "m>m", [](X x) { return torch::hardtanh(x[0], -0.5, 0.6); });
  add.plain("hardswish", "m>m", [](X x) { return torch::hardswish(x[0]); });
  add.plain("hardsigmoid", "m>m", [](X x) { return torch::hardsigmoid(x[0]); });
  add.plain("logsigmoid", "m>m", [](X x) { return torch::log_sigmoid(x[0]); });
  add.plain("threshold", "m>m", [](X x) { return torch::threshold(x[0], 0.1, -0.2); });
  add.plain("glu", "m>m", [](X x) { return torch::glu(torch::cat({x[0], x[0].flip(1)}, 1), 1); });
  add.plain("softmax", "m>m", [](X x) { return x[0].softmax(1); });
  add.plain("softmax_of_columns", "m>m", [](X x) { return x[0].softmax(0) * 4; });
  add.plain("log_softmax", "m>m", [](X x) { return bounded(x[0].log_softmax(1)); });
  add.plain("softmin", "m>m", [](X x) { return F::softmin(x[0], F::SoftminFuncOptions(1)); });
  add("prelu", "m>m", [](Site& site) -> Apply {
    const Tensor slope = site.parameter({kColumns});
    return [slope](X x) { return torch::prelu(x[0], slope); };
  });
}

void add_binary_cases(OpTable& add) {
  add("add_alpha", "mm>m", [](Site& site) -> Apply {
    return [alpha = 0.25 * static_cast<double>(site.number(-6, 6))](X x) { return bounded(x[0].add(x[1], alpha)); };
  });
  add.plain("sub", "mm>m", [](X x) { return bounded(x[0] - x[1]); });
  add.plain("rsub", "mm>m", [](X x) { return bounded(torch::rsub(x[0], x[1], 2)); });
  add.plain("mul", "mm>m", [](X x) { return bounded(x[0] * x[1]); });
  add.plain("mul_of_itself", "m>m", [](X x) { return bounded(x[0] * x[0].detach() + x[0] * x[0]); });
  add.plain("div", "mm>m", [](X x) { return bounded(x[0] / above_half(x[1])); });
  add.plain("div_floor", "mm>m", [](X x) { return bounded(torch::div(x[0], above_half(x[1]), "floor") + x[0]); });
  add.plain("floor_divide", "mm>m", [](X x) { return bounded(x[0].detach().floor_divide(0.3) * x[1]); });
  add.plain("fmod", "mm>m", [](X x) { return torch::fmod(x[0], above_half(x[1])); });
  add.plain("remainder", "mm>m", [](X x) { return torch::remainder(x[0], above_half(x[1])); });
  add.plain("pow_number", "m>m", [](X x) { return bounded(above_half(x[0]).pow(1.7)); });
  add.plain("pow_tensor", "mm>m", [](X x) { return bounded(above_half(x[0]).pow(x[1].tanh())); });
  add.plain("number_pow", "m>m", [](X x) { return torch::pow(2.0, x[0].tanh()); });
  add.plain("float_power", "m>m", [](X x) { return bounded(torch::float_power(above_half(x[0]), 1.5)); });
  add.plain("atan2", "mm>m", [](X x) { return torch::atan2(x[0], above_half(x[1])); });
  add.plain("hypot", "mm>m", [](X x) { return bounded(torch::hypot(x[0], above_half(x[1]))); });
  add.plain("maximum", "mm>m", [](X x) { return torch::maximum(x[0], x[1]); });
  add.plain("minimum", "mm>m", [](X x) { return torch::minimum(x[0], x[1]); });
  add.plain("fmax", "mm>m", [](X x) { return torch::fmax(x[0], x[1] * 0.5) + torch::fmin(x[0], x[1]); });
  add.plain("lerp_number", "mm>m", [](X x) { return torch::lerp(x[0], x[1], 0.3); });
  add.plain("lerp_tensor", "mmm>m", [](X x) { return torch::lerp(x[0], x[1], x[2].sigmoid()); });
  add.plain("addcmul", "mmm>m", [](X x) { return bounded(torch::addcmul(x[0], x[1], x[2], 0.5)); });
  add.plain("addcdiv", "mmm>m", [](X x) { return bounded(torch::addcdiv(x[0], x[1], above_half(x[2]), 0.5)); });
  add.plain("where", "bmm>m", [](X x) { return torch::where(x[0], x[1], x[2]); });
  add.plain("where_number", "bm>m", [](X x) { return torch::where(x[0], x[1], 0.5); });
  add.plain("logaddexp", "mm>m", [](X x) { return bounded(torch::logaddexp(x[0], x[1])); });
  add.plain("copysign", "mm>m", [](X x) { return torch::copysign(x[0], x[1]); });
  add.plain("heaviside", "mm>m", [](X x) { return torch::heaviside(x[0].detach(), x[1].detach()) + x[0]; });
  add.plain("ldexp", "m>m", [](X x) { return bounded(torch::ldexp(x[0], torch::ones({kColumns}, at::kInt))); });
  add.plain("clamp", "m>m", [](X x) { return x[0].clamp(-0.4, 0.7); });
  add.plain("clamp_min", "m>m", [](X x) { return x[0].clamp_min(-0.1).clamp_max(0.5); });
  add.plain("clip_to_tensors", "mm>m", [](X x) { return torch::clip(x[0], x[1] - 0.5, x[1] + 0.5); });

  // masks
  add.plain("greater", "mm>b", [](X x) { return x[0] > x[1]; });
  add.plain("less_equal", "mm>b", [](X x) { return x[0] <= x[1]; });
  add.plain("not_equal", "mm>b", [](X x) { return x[0].ne(x[1]); });
  add.plain("isclose", "mm>b", [](X x) { return torch::isclose(x[0], x[1], 0.1, 0.3); });
  add.plain("isfinite", "m>b", [](X x) { return torch::isfinite(x[0]).logical_and(x[0] > 0); });
  add.plain("signbit", "m>b", [](X x) { return torch::signbit(x[0]); });
  add.plain("logical_and", "bb>b", [](X x) { return x[0].logical_and(x[1]); });
  add.plain("logical_or", "bb>b", [](X x) { return x[0].logical_or(x[1]); });
  add.plain("logical_xor", "bb>b", [](X x) { return x[0].logical_xor(x[1]); });
  add.plain("logical_not", "b>b", [](X x) { return ~x[0]; });
  add.plain("bitwise_and", "bb>b", [](X x) { return x[0] & x[1]; });
}

}  // namespace

void add_pointwise_cases(OpTable& add) {
  add_unary_cases(add);
  add_activation_cases(add);
  add_binary_cases(add);
}

}  // namespace duet::testing::fuzz
