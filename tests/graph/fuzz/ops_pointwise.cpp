#include <sstream>
#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

Tensor above_half(const Tensor& x) { return x.abs() + 0.5; }
Tensor inside(const Tensor& x) { return x.tanh() * 0.9; }  // of -1 and 1
Tensor any(const Tensor& x) { return x; }

// Ops that take tensors alone, by their names in the dispatcher: on what `fit` makes of the values.
void add_by_name(OpTable& add, const std::string& names, const std::string& signature, Tensor (*fit)(const Tensor&),
                 Tensor (*end)(const Tensor&) = any) {
  std::istringstream all(names);
  for (std::string name; all >> name;) {
    const std::size_t end_of_name = std::min(name.find('.'), name.size());
    const std::string overload = name.substr(std::min(end_of_name + 1, name.size()));
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, end_of_name)).c_str(),
                                                                   overload.c_str());
    add(name, signature, [=](Site&) -> Apply {
      return [=](X x) {
        std::vector<c10::IValue> stack;
        for (const Tensor& value : x) stack.emplace_back(fit(value));
        op.callBoxed(stack);
        return end(stack.front().toTensor());
      };
    });
  }
}

void add_named_cases(OpTable& add) {
  add_by_name(add, "abs neg sin cos tanh erf erfc atan asinh sinc frac", "m>m", any);
  add_by_name(add, "relu silu mish sigmoid hardswish hardsigmoid log_sigmoid", "m>m", any);
  add_by_name(add, "tan exp exp2 expm1 square erfinv asin acos atanh sinh cosh i0", "m>m", inside);
  add_by_name(add, "log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma", "m>m", above_half);
  add_by_name(add, "maximum minimum fmax fmin copysign.Tensor", "mm>m", any);
  add_by_name(add, "fmod.Tensor remainder.Tensor atan2", "mm>m", above_half);
  add_by_name(add, "mul.Tensor logaddexp", "mm>m", any, bounded);
  add_by_name(add, "div.Tensor hypot", "mm>m", above_half, bounded);
  add_by_name(add, "gt.Tensor le.Tensor ne.Tensor", "mm>b", any);
  add_by_name(add, "signbit", "m>b", any);
  add_by_name(add, "logical_and logical_or logical_xor bitwise_and.Tensor", "bb>b", any);
  add_by_name(add, "logical_not", "b>b", any);
}

void add_unary_cases(OpTable& add) {
  add.plain("acosh", "m>m", [](X x) { return (above_half(x[0]) + 1).acosh(); });
  add.plain("logit", "m>m", [](X x) { return (x[0].sigmoid() * 0.9 + 0.05).logit(); });
  add.plain("ceil", "m>m", [](X x) { return x[0].ceil() - x[0]; });
  add.plain("floor", "m>m", [](X x) { return x[0] - x[0].floor(); });
  add.plain("round", "m>m", [](X x) { return x[0].round() * 0.5 - x[0]; });
  add.plain("trunc", "m>m", [](X x) { return x[0] - x[0].trunc(); });
  add.plain("sign", "m>m", [](X x) { return x[0].sign() * 0.5 + x[0]; });
  add.plain("sgn", "m>m", [](X x) { return x[0].sgn() * x[0].tanh(); });
  add.plain("nan_to_num", "m>m", [](X x) { return (x[0] / x[0].relu()).nan_to_num(0.25, 1, -1); });
  add.plain("xlogy", "m>m", [](X x) { return bounded(torch::xlogy(x[0].sigmoid(), above_half(x[0]))); });
  add.plain("entr", "m>m", [](X x) { return torch::special::entr(above_half(x[0])).tanh(); });
}

void add_activation_cases(OpTable& add) {
  add.plain("relu6", "m>m", [](X x) { return F::relu6(x[0] * 4); });
  add("leaky_relu", "m>m", [](Site& site) -> Apply {
    return [slope = 0.01 * static_cast<double>(site.number(1, 30))](X x) { return torch::leaky_relu(x[0], slope); };
  });
  add.plain("elu", "m>m", [](X x) { return torch::elu(x[0], 0.7); });
  add.plain("selu", "m>m", [](X x) { return bounded(torch::selu(x[0])); });
  add.plain("celu", "m>m", [](X x) { return torch::celu(x[0], 0.8); });
  add.plain("gelu", "m>m", [](X x) { return torch::gelu(x[0]); });
  add.plain("gelu_tanh", "m>m", [](X x) { return torch::gelu(x[0], "tanh"); });
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
  add.plain("softplus", "m>m", [](X x) { return bounded(F::softplus(x[0])); });
  add.plain("softsign", "m>m", [](X x) { return F::softsign(x[0]); });
  add.plain("softshrink", "m>m", [](X x) { return torch::softshrink(x[0], 0.2); });
  add.plain("hardshrink", "m>m", [](X x) { return torch::hardshrink(x[0], 0.2); });
  add.plain("tanhshrink", "m>m", [](X x) { return F::tanhshrink(x[0]); });
  add.plain("hardtanh", "m>m", [](X x) { return torch::hardtanh(x[0], -0.5, 0.6); });
  add.plain("threshold", "m>m", [](X x) { return torch::threshold(x[0], 0.1, -0.2); });
  add.plain("glu", "m>m", [](X x) { return torch::glu(torch::cat({x[0], x[0].flip(1)}, 1), 1); });
  add.plain("softmax", "m>m", [](X x) { return x[0].softmax(1); });
  add.plain("softmax_of_columns", "m>m", [](X x) { return x[0].softmax(0) * 4; });
  add.plain("log_softmax", "m>m", [](X x) { return bounded(x[0].log_softmax(1)); });
  add.plain("softmin", "m>m", [](X x) { return F::softmin(x[0], F::SoftminFuncOptions(1)); });
  add.weighted("prelu", "m>m", {kColumns}, [](X x, const Tensor& slope) { return torch::prelu(x[0], slope); });
}

void add_binary_cases(OpTable& add) {
  add("add_alpha", "mm>m", [](Site& site) -> Apply {
    return [alpha = 0.25 * static_cast<double>(site.number(-6, 6))](X x) { return bounded(x[0].add(x[1], alpha)); };
  });
  add.plain("sub", "mm>m", [](X x) { return bounded(x[0] - x[1]); });
  add.plain("rsub", "mm>m", [](X x) { return bounded(torch::rsub(x[0], x[1], 2)); });
  add.plain("mul_of_itself", "m>m", [](X x) { return bounded(x[0] * x[0].detach() + x[0] * x[0]); });
  add.plain("div_floor", "mm>m", [](X x) { return bounded(torch::div(x[0], above_half(x[1]), "floor") + x[0]); });
  add.plain("floor_divide", "mm>m", [](X x) { return bounded(x[0].detach().floor_divide(0.3) * x[1]); });
  add.plain("pow_number", "m>m", [](X x) { return bounded(above_half(x[0]).pow(1.7)); });
  add.plain("pow_tensor", "mm>m", [](X x) { return bounded(above_half(x[0]).pow(x[1].tanh())); });
  add.plain("number_pow", "m>m", [](X x) { return torch::pow(2.0, x[0].tanh()); });
  add.plain("float_power", "m>m", [](X x) { return bounded(torch::float_power(above_half(x[0]), 1.5)); });
  add.plain("lerp_number", "mm>m", [](X x) { return torch::lerp(x[0], x[1], 0.3); });
  add.plain("lerp_tensor", "mmm>m", [](X x) { return torch::lerp(x[0], x[1], x[2].sigmoid()); });
  add.plain("addcmul", "mmm>m", [](X x) { return bounded(torch::addcmul(x[0], x[1], x[2], 0.5)); });
  add.plain("addcdiv", "mmm>m", [](X x) { return bounded(torch::addcdiv(x[0], x[1], above_half(x[2]), 0.5)); });
  add.plain("where", "bmm>m", [](X x) { return torch::where(x[0], x[1], x[2]); });
  add.plain("where_number", "bm>m", [](X x) { return torch::where(x[0], x[1], 0.5); });
  add.plain("heaviside", "mm>m", [](X x) { return torch::heaviside(x[0].detach(), x[1].detach()) + x[0]; });
  add.plain("ldexp", "m>m", [](X x) { return bounded(torch::ldexp(x[0], torch::ones({kColumns}, at::kInt))); });
  add.plain("clamp", "m>m", [](X x) { return x[0].clamp(-0.4, 0.7); });
  add.plain("clamp_min", "m>m", [](X x) { return x[0].clamp_min(-0.1).clamp_max(0.5); });
  add.plain("clip_to_tensors", "mm>m", [](X x) { return torch::clip(x[0], x[1] - 0.5, x[1] + 0.5); });

  // masks
  add.plain("isclose", "mm>b", [](X x) { return torch::isclose(x[0], x[1], 0.1, 0.3); });
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
