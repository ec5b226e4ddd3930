#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

Tensor joined(const Tensor& complex) { return as_matrix(torch::view_as_real(complex)); }
Tensor soft(const Tensor& complex) { return complex / (complex.abs() + 1); }

void add_complex_cases(OpTable& add) {
  const auto of_values = [](const Tensor& result, const Tensor&) { return soft(result); };
  add.by_name("mul.Tensor add.Tensor", "cc>c", {.end = of_values});
  add.by_name("fft_fft fft_ifft fft_fft2 conj_physical", "c>c", {.end = of_values});
  add.by_name("add.Tensor mul.Tensor", "hh>h", {.end = minus});
  add.by_name("gelu sigmoid", "h>h");
  add.by_name("softmax.int", "h>h", {.more = {1}});
  add.plain("complex_by_number", "c>c", [](X x) { return x[0] * c10::complex<double>(0.6, 0.8); });
  add.plain("complex_matmul", "cc>c", [](X x) { return soft(x[0].matmul(x[0].transpose(0, 1)).matmul(x[1])); });
  add.plain("complex_exp", "c>c", [](X x) { return soft(soft(x[0]).exp()); });
  add.plain("conj", "c>c", [](X x) { return x[0].conj() * x[0].sum(); });
  add.plain("conjugate_transposed", "c>c", [](X x) { return soft(x[0].matmul(x[0].mH()).matmul(x[0])); });
  add.plain("real_and_imag", "c>m", [](X x) { return torch::cat({torch::real(x[0]), torch::imag(x[0])}, 1); });
  add.plain("angle", "c>m", [](X x) { return torch::cat({torch::angle(x[0] + 2), x[0].abs()}, 1); });
  add.plain("polar", "m>c", [](X x) { return torch::polar(x[0].narrow(1, 0, 8).abs(), x[0].narrow(1, 8, 8)); });
  add.plain("complex", "m>c", [](X x) { return torch::complex(x[0].narrow(1, 0, 8), x[0].narrow(1, 8, 8)); });
  add.plain("rfft", "m>m", [](X x) { return bounded(joined(torch::fft::rfft(x[0]).narrow(1, 1, 8))); });
  add.plain("irfft", "c>m", [](X x) { return bounded(torch::fft::irfft(x[0], kColumns)); });
  add.plain("fftshift", "m>m", [](X x) { return torch::fft::fftshift(x[0], {1}); });
  add.plain("stft", "m>m", [](X x) {
    const Tensor spectrum = torch::stft(x[0], 8, 4, 8, torch::hann_window(8), false, true, true);
    return bounded(x[0] + spectrum.abs().mean());
  });
}

// Losses in low precision; fp16 and bfloat16 beside float and double.
void add_half_cases(OpTable& add) {
  add.plain("half_matmul", "hh>h", [](X x) { return bounded(x[0].matmul(x[0].t()).matmul(x[1])); });
  add.plain("half_layer_norm", "h>h", [](X x) { return torch::layer_norm(x[0], {kColumns}); });
  add.plain("half_dropout", "h>h", [](X x) { return torch::dropout(x[0], 0.3, true); });
  add.plain("half_in_place", "hh>h", [](X x) { return (x[0] * 1).add_(x[1]).tanh_(); });
  add.plain("half_with_float", "hm>m", [](X x) { return bounded(x[0] * x[1]); });
  add.weighted("half_linear", "h>h", {kColumns, kColumns},
               [](X x, const Tensor& weight) { return bounded(F::linear(x[0], weight.to(at::kBFloat16))); });
  add("half_parameter", "h>h", [](Site& site) -> Apply {
    const Tensor weight = site.model.register_parameter(site.name, (torch::randn({kColumns}) * 0.3).to(at::kBFloat16));
    return [weight](X x) { return bounded(x[0] * weight); };
  });
  add.plain("fp16", "m>m", [](X x) { return (x[0].to(at::kHalf) * 0.7).tanh().to(at::kFloat); });
  add.plain("fp16_matmul", "mm>m",
            [](X x) { return bounded(x[0].to(at::kHalf).matmul(x[1].to(at::kHalf).t()).to(at::kFloat).matmul(x[0])); });
  add.plain("double", "m>m", [](X x) {
    return bounded(x[0].to(at::kDouble).sin().matmul(x[0].to(at::kDouble).t())).to(at::kFloat).matmul(x[0]).tanh();
  });
  add("double_parameter", "m>m", [](Site& site) -> Apply {
    const Tensor weight = site.model.register_parameter(site.name, (torch::randn({kColumns}) * 0.3).to(at::kDouble));
    return [weight](X x) { return bounded(x[0].to(at::kDouble) * weight).to(at::kFloat); };
  });
}

void add_integer_cases(OpTable& add) {
  add.plain("int_and_back", "m>m", [](X x) { return (x[0].detach() * 100).to(at::kInt).to(at::kFloat) / 100 + x[0]; });
  add.plain("int_arithmetic", "k>k", [](X x) { return (x[0] * x[0] + 3).bitwise_and(7); });
  add.plain("int_mask_sum", "b>k", [](X x) { return x[0].sum(1).remainder(kClasses); });
  add.plain("fake_quantize", "m>m",
            [](X x) { return torch::fake_quantize_per_tensor_affine(x[0], 0.05, 3, -128, 127); });
  add.plain("fake_quantize_by_tensor", "m>m", [](X x) {
    return torch::fake_quantize_per_tensor_affine(x[0], x[0].detach().abs().max() / 64 + 0.01,
                                                  torch::zeros({}, at::kInt), -128, 127);
  });
}

}  // namespace

void add_dtype_cases(OpTable& add) {
  add_complex_cases(add);
  add_half_cases(add);
  add_integer_cases(add);
}

}  // namespace duet::testing::fuzz
