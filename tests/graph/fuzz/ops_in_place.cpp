#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

void add_in_place_cases(OpTable& add) {
  const auto copied = [](const Tensor& x) { return x.clone(); };
  add.by_name("relu_ tanh_ sigmoid_ leaky_relu_ elu_ tril_ neg_ zero_", "m>m", {.fit = copied});
  add.by_name("add_.Tensor sub_.Tensor mul_.Tensor copy_", "mm>m", {copied, minus});
  add.by_name("addcmul_", "mmm>m", {copied, minus});
  add.by_name("logical_or_ logical_and_", "bb>b", {.fit = copied});
  add.by_name("clamp_", "m>m", {.fit = copied, .more = {-0.5, 0.25}});
  add.by_name("fill_.Scalar", "m>m", {copied, minus, {0.5}});
  add.by_name("pow_.Scalar", "m>m", {copied, minus, {2}});
  add.by_name("cumsum_", "m>m", {copied, minus, {1}});
  add.by_name("lerp_.Scalar", "mm>m", {.fit = copied, .more = {0.2}});
  add.by_name("masked_fill_.Scalar", "mb>m", {.fit = copied, .more = {0.25}});
  add("writes_the_ring", "m>m", [](Site& site) -> Apply {
    const int64_t rows = site.number(1, 24);
    return [ring = site.user.ring, first = site.number(0, 63 - rows), rows](X x) {
      const torch::NoGradGuard no_grad;
      ring.narrow(0, first, rows).mul_(0.9).add_(0.1);
      return x[0] * 1;
    };
  });
  add.plain("div_", "mm>m", [](X x) { return bounded(own(x[0]).div_(x[1].abs() + 1)); });
  add.plain("chain_of_changes", "m>m", [](X x) { return own(x[0]).mul_(2).add_(1).neg_().clamp_(-1, 1); });
  add.plain("exp_", "m>m", [](X x) { return (x[0].tanh() * 1).exp_(); });
  add.plain("sqrt_", "m>m", [](X x) { return (x[0].abs() + 0.5).sqrt_(); });
  add.plain("addmm_", "mm>m", [](X x) { return bounded(own(x[0]).addmm_(x[1], x[1].t().mm(x[0]).tanh())); });
  add.plain("copy_broadcast", "mm>m", [](X x) { return own(x[0]).copy_(x[1][0]); });
  add.plain("copy_from_half", "mh>m", [](X x) { return own(x[0]).copy_(x[1]); });
  add.plain("index_put_", "mk>m", [](X x) { return own(x[0]).index_put_({x[1]}, x[0].sin()); });
  add.plain("index_put_mask", "mb>m", [](X x) {
    Tensor y = own(x[0]);
    return at::index_put_(y, {x[1]}, torch::tensor(0.25F));
  });
  add.plain("index_put_accumulate", "mk>m",
            [](X x) { return bounded(own(x[0]).index_put_({x[1]}, x[0].cos(), /*accumulate=*/true)); });
  add.plain("index_add_", "mk>m", [](X x) { return bounded(own(x[0]).index_add_(0, x[1], x[0].sin(), 0.5)); });
  add.plain("index_copy_", "mk>m", [](X x) {
    return own(x[0]).index_copy_(0, torch::arange(8).flip(0), x[0].narrow(0, 0, 8).sin()) + x[1].unsqueeze(1) * 0.1;
  });
  add.plain("index_fill_", "mk>m", [](X x) { return own(x[0]).index_fill_(0, x[1], 0.75); });
  add.plain("scatter_", "mk>m", [](X x) { return own(x[0]).scatter_(1, x[1].unsqueeze(1), 0.5); });
  add.plain("scatter_add_", "mk>m",
            [](X x) { return bounded(own(x[0]).scatter_add_(1, x[1].unsqueeze(1), x[0].narrow(1, 0, 1))); });

  // through views
  add.plain("add_to_narrow", "mm>m", [](X x) {
    Tensor y = own(x[0]);
    y.narrow(1, 2, 6).add_(x[1].narrow(1, 0, 6));
    return bounded(y);
  });
  add.plain("mul_of_transpose", "mm>m", [](X x) {
    Tensor y = own(x[0]);
    y.t().mul_(x[1].t());
    return bounded(y);
  });
  add.plain("change_of_diagonal", "m>m", [](X x) {
    Tensor y = own(x[0]);
    y.diagonal().fill_(0.25);
    y.diagonal(1).neg_();
    return y;
  });
  add.plain("change_of_unbound", "m>m", [](X x) {
    Tensor y = own(x[0]).detach();
    const Tensors rows = y.unbind(0);
    rows[1].add_(rows[2]);
    rows[2].zero_();
    return y * x[0].sin();
  });
  add.plain("change_seen_through_view", "m>m", [](X x) {
    Tensor y = own(x[0]);
    const Tensor view = y.slice(1, 0, kColumns, 2);
    y.mul_(0.5);
    return torch::cat({view, view.sin()}, 1);
  });
  add.plain("change_of_as_strided", "m>m", [](X x) {
    Tensor y = own(x[0].detach()).contiguous();
    y.as_strided({4, 4}, {16, 3}).add_(0.25);
    return y * x[0].cos();
  });
  add.plain("change_of_real_parts", "c>c", [](X x) {
    Tensor y = x[0].detach() * 1;
    torch::real(y).mul_(0.5);
    torch::imag(y).add_(0.1);
    return y;
  });

  // of the shape
  add.plain("unsqueeze_", "m>m", [](X x) { return own(x[0]).unsqueeze_(1).squeeze_(1); });
  add.plain("t_", "m>m", [](X x) { return own(x[0]).t_().sin().t(); });
  add.plain("transpose_", "s>s", [](X x) { return own(x[0]).transpose_(1, 2).cos().transpose(1, 2); });
  add.plain("as_strided_", "m>m", [](X x) {
    return own(x[0].detach()).contiguous().as_strided_({x[0].size(0), kColumns}, {1, x[0].size(0)}) * x[0].sin();
  });
  add.plain("detach_", "m>m", [](X x) { return own(x[0]).detach_() + x[0]; });
  add.plain("resize_", "m>m", [](X x) {
    Tensor y = torch::empty({2});
    y.resize_(x[0].sizes()).copy_(x[0].detach());
    return y * x[0];
  });
  add.plain("set_data", "m>m", [](X x) {
    Tensor y = own(x[0].detach());
    y.set_data(x[0].detach().sin());
    return y + x[0];
  });
}

namespace {

// Through out= no gradient flows. `y` is empty.
void with_out(OpTable& add, const std::string& name, const std::string& signature, Tensor (*apply)(Tensor& y, X)) {
  add(name, signature, [apply](Site&) -> Apply {
    return [apply](X x) {
      const torch::NoGradGuard no_grad;
      Tensor y = torch::empty({0});
      return apply(y, x);
    };
  });
}

}  // namespace

void add_out_cases(OpTable& add) {
  with_out(add, "add_out", "mm>m", [](Tensor& y, X x) { return torch::add_out(y, x[0], x[1]).tanh(); });
  with_out(add, "mul_out", "mm>m", [](Tensor& y, X x) {
    y = torch::empty_like(x[0]);
    return bounded(torch::mul_out(y, x[0], x[1]));
  });
  with_out(add, "add_out_into_itself", "mm>m", [](Tensor& y, X x) {
    y = own(x[0]);
    return bounded(torch::add_out(y, y, x[1]));
  });
  with_out(add, "tanh_out", "m>m", [](Tensor& y, X x) { return torch::tanh_out(y, x[0]); });
  with_out(add, "mm_out", "mm>m", [](Tensor& y, X x) { return bounded(torch::mm_out(y, x[0], x[1].t().mm(x[0]))); });
  with_out(add, "cat_out", "mm>m",
           [](Tensor& y, X x) { return torch::cat_out(y, {x[0].narrow(1, 0, 8), x[1].narrow(1, 4, 8)}, 1); });
  with_out(add, "stack_out", "mm>m", [](Tensor& y, X x) { return bounded(torch::stack_out(y, {x[0], x[1]}).sum(0)); });
  with_out(add, "sum_out", "m>m", [](Tensor& y, X x) { return bounded(torch::sum_out(y, x[0], 1, true) + x[0]); });
  with_out(add, "out_into_view", "mm>m", [](Tensor& y, X x) {
    y = torch::zeros({x[0].size(0), 2 * kColumns});
    Tensor left = y.narrow(1, 0, kColumns);
    Tensor right = y.narrow(1, kColumns, kColumns);
    torch::sin_out(left, x[0]);
    torch::cos_out(right, x[1]);
    return y.slice(1, 0, 2 * kColumns, 2);
  });
  with_out(add, "out_used_twice", "mm>m", [](Tensor& y, X x) {
    const Tensor first = torch::sin_out(y, x[0]) + 0.5;
    return bounded(first + torch::cos_out(y, x[1]));
  });
  with_out(add, "out_of_another_dtype", "mm>m", [](Tensor& y, X x) {
    y = torch::empty({0}, at::kDouble);
    return bounded(torch::add_out(y, x[0], x[1]).to(at::kFloat));
  });
  with_out(add, "max_out", "m>m", [](Tensor& y, X x) {
    Tensor places = torch::empty({0}, at::kLong);
    torch::max_out(y, places, x[0], 1, true);
    return bounded(y + x[0] + places * 0.01);
  });
  with_out(add, "sort_out", "m>m", [](Tensor& y, X x) {
    Tensor places = torch::empty({0}, at::kLong);
    torch::sort_out(y, places, x[0], 1, false);
    return y + places * 0.01;
  });
  with_out(add, "arange_out", "m>m", [](Tensor& y, X x) { return x[0] * torch::arange_out(y, kColumns).cos(); });
  with_out(add, "index_select_out", "mk>m", [](Tensor& y, X x) { return torch::index_select_out(y, x[0], 0, x[1]); });
  with_out(add, "out_into_strides", "mm>m", [](Tensor& y, X x) {
    y = torch::empty({kColumns, x[0].size(0)}).t();
    return bounded(torch::sub_out(y, x[0], x[1]));
  });
}

}  // namespace duet::testing::fuzz
