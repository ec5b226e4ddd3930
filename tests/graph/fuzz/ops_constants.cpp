#include <algorithm>
#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

void add_constant_cases(OpTable& add) {
  add.plain("tensor_of_numbers", "m>m", [](X x) {
    return x[0].narrow(1, 0, 4).mul(torch::tensor({1.0F, -0.5F, 2.0F, 0.1F})).repeat({1, 4}).tanh();
  });
  add.plain("scalar_tensor", "m>m",
            [](X x) { return bounded(x[0] * torch::scalar_tensor(1.5) + torch::tensor(0.25)); });
  add.plain("arange", "m>m", [](X x) { return x[0] * torch::arange(kColumns).div(10.0).cos(); });
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
  add.plain("empty_filled", "m>m", [](X x) { return x[0] * torch::empty_like(x[0].detach()).fill_(0.5); });
  add.plain("from_blob_cloned", "m>m", [](X x) {
    std::vector<float> numbers(kColumns, 0.25F);
    return x[0] + torch::from_blob(numbers.data(), {kColumns}).clone();
  });
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
  add.weighted("parameter", "m>m", {kColumns}, [](X x, const Tensor& scale) { return bounded(x[0] * scale); });
  add.weighted("parameter_as_term", "m>z", {}, [](X x, const Tensor& term) { return x[0].mean() * term + term; });
  add.weighted("parameter_without_elements", "m>m", {0, 4}, [](X x, const Tensor& none) {
    const Tensor nothing = x[0].narrow(1, 0, 0);
    return torch::cat({x[0], nothing}, 1) + none.sum() + nothing.sum() + torch::empty({0}).sum();
  });
}

}  // namespace duet::testing::fuzz
