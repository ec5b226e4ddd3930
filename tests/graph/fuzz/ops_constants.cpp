#include <algorithm>
#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

void add_constant_cases(OpTable& add) {
  add.plain("tensor_of_numbers", "m>m", [](X x) {
    return x[0].narrow(1, 0, 4).mul(torch::tensor({1.0F, -0.5F, 2.0F, 0.1F})).repeat({1, 4}).tanh();
  });
  add("tensor_of_vector", "m>m", [](Site& site) -> Apply {
    std::vector<float> numbers(kColumns);
    for (float& number : numbers) number = 0.1F * static_cast<float>(site.number(-9, 9));
    return [numbers](X x) { return bounded(x[0] * torch::tensor(numbers)); };
  });
  add.plain("scalar_tensor", "m>m",
            [](X x) { return bounded(x[0] * torch::scalar_tensor(1.5) + torch::tensor(0.25)); });
  add.plain("arange", "m>m", [](X x) { return x[0] * torch::arange(kColumns).div(10.0).cos(); });
  add.plain("linspace", "m>m", [](X x) { return x[0] * torch::linspace(-1, 1, kColumns); });
  add.plain("logspace", "m>m", [](X x) { return bounded(x[0] * torch::logspace(-1, 0.5, kColumns)); });
  add.plain("eye", "m>m", [](X x) { return bounded(x[0].matmul(torch::eye(kColumns) + 0.1)); });
  add.plain("zeros_by_accessor", "m>m", [](X x) {
    const Tensor mask = torch::zeros({kColumns});
    auto numbers = mask.accessor<float, 1>();
    for (int64_t n = 0; n < kColumns; n += 3) numbers[n] = 1;
    return x[0] * mask;
  });
  add.plain("empty_by_pointer", "m>m", [](X x) {
    const Tensor numbers = torch::empty({kColumns});
    std::fill_n(numbers.data_ptr<float>(), kColumns, 0.5F);
    return x[0] + numbers;
  });
  add.plain("constant_changed_later", "m>m", [](X x) {
    Tensor numbers = torch::tensor({1.0F, 2.0F, 0.5F, 1.5F}).repeat({4});
    const Tensor first = x[0] * numbers.sin();
    numbers.mul_(0.5).add_(x[0].detach()[0]);
    return bounded(first - numbers);
  });
  add.plain("constant_reshaped_in_place", "m>m",
            [](X x) { return x[0] * torch::tensor({1.0F, 2.0F, 0.5F, 1.5F}).unsqueeze_(1).repeat({4, 1}).t_().cos(); });
  add.plain("constant_written_by_op", "m>m", [](X x) {
    Tensor table = torch::zeros({x[0].size(0), kColumns});
    table[2].fill_(0.5);
    table.select(1, 3).copy_(x[0].detach().select(1, 1));
    return bounded(table + x[0]);
  });
  add.plain("ones_like", "m>m",
            [](X x) { return x[0] * 0.5 + torch::ones_like(x[0]).tril() * torch::zeros_like(x[0]).add(0.1); });
  add.plain("full", "m>m",
            [](X x) { return x[0] + torch::full({kColumns}, 0.1) - x[0].new_full({x[0].size(0), 1}, 0.2); });
  add.plain("new_zeros", "m>m",
            [](X x) { return torch::cat({x[0].new_zeros({x[0].size(0), 4}), x[0].narrow(1, 0, 12)}, 1); });
  add.plain("empty_filled", "m>m", [](X x) { return x[0] * torch::empty_like(x[0].detach()).fill_(0.5); });
  add.plain("tril_mask", "m>m",
            [](X x) { return x[0].masked_fill(torch::ones({x[0].size(0), kColumns}, at::kBool).triu(3), -0.5); });
  add.plain("from_blob_cloned", "m>m", [](X x) {
    std::vector<float> numbers(kColumns, 0.25F);
    return x[0] + torch::from_blob(numbers.data(), {kColumns}).clone();
  });
  add.plain("windows", "m>m",
            [](X x) { return x[0] * torch::hann_window(kColumns) + torch::hamming_window(kColumns) * 0.1; });
  add.plain("positions", "s>s", [](X x) {
    const Tensor angles = torch::arange(4).unsqueeze(1) * torch::exp(torch::arange(4) * -0.5);
    return bounded(x[0] + torch::stack({angles.sin(), angles.cos()}, 2).view({4, 8}));
  });
  add.plain("scalar_of_shape", "m>m", [](X x) { return x[0] / std::sqrt(static_cast<double>(x[0].size(0))); });
  add("table_made_before", "mk>m", [](Site&) -> Apply {
    const Tensor table = torch::arange(kClasses).mul(0.1).sin();
    return [table](X x) { return x[0] + table.index_select(0, x[1]).unsqueeze(1); };
  });
  add("table_made_at_first_use", "m>m", [](Site&) -> Apply {
    auto cache = std::make_shared<Tensor>();
    return [cache](X x) {
      if (!cache->defined()) *cache = torch::arange(kColumns).mul(0.2).cos();
      return x[0] * *cache;
    };
  });
  add("buffer", "m>m", [](Site& site) -> Apply {
    const Tensor offset = site.buffer(torch::rand({kColumns}) * 0.2);
    return [offset](X x) { return x[0] + offset; };
  });
  add.weighted("parameter", "m>m", {kColumns}, [](X x, const Tensor& scale) { return bounded(x[0] * scale); });
  add.weighted("parameter_as_term", "m>z", {}, [](X x, const Tensor& term) { return x[0].mean() * term + term; });
  add.weighted("parameter_without_elements", "m>m", {0, 4}, [](X x, const Tensor& none) {
    const Tensor nothing = x[0].narrow(1, 0, 0);
    return torch::cat({x[0], nothing}, 1) + none.sum() + nothing.sum() + torch::empty({0}).sum();
  });
}

}  // namespace duet::testing::fuzz
