#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

Tensor blank(const Tensor& x) { return torch::empty_like(x.detach()); }
Tensor share(const Tensor& x) { return x.detach().sigmoid(); }

}  // namespace

void add_random_cases(OpTable& add) {
  add.by_name("rand_like randn_like bernoulli poisson", "m>m", {share, minus});
  add.by_name("normal_ uniform_ exponential_ log_normal_ cauchy_", "m>m", {blank, minus});
  add.by_name("native_dropout", "m>m", {.more = {0.25, true}});
  add.by_name("alpha_dropout", "m>m", {.end = minus, .more = {0.3, true}});
  add.by_name("feature_dropout feature_alpha_dropout", "s>s", {.end = minus, .more = {0.3, true}});
  add.by_name("rrelu", "m>m", {.more = {0.1, 0.4, true}});
  add("dropout", "m>m", [](Site& site) -> Apply {
    return [p = 0.1 * static_cast<double>(site.number(1, 8))](X x) { return bounded(torch::dropout(x[0], p, true)); };
  });
  add.plain("dropout_", "m>m", [](X x) {
    Tensor y = x[0] + 0;
    return bounded(torch::dropout_(y, 0.4, true));
  });
  add.plain("dropout_of_all", "m>m", [](X x) { return x[0] + torch::dropout(x[0], 1.0, true); });
  add.plain("dropout_of_none", "m>m", [](X x) { return torch::dropout(x[0], 0.0, true); });
  add.plain("dropout2d", "i>i", [](X x) { return F::dropout2d(x[0], F::Dropout2dFuncOptions().p(0.3)); });
  add.plain("bernoulli_p", "m>m", [](X x) { return x[0] * torch::bernoulli(x[0].detach(), 0.3); });
  add.plain("bernoulli_", "m>b", [](X x) { return torch::empty(x[0].sizes(), at::kBool).bernoulli_(0.7); });
  add.plain("bernoulli_by_tensor", "m>m", [](X x) { return x[0] * blank(x[0]).bernoulli_(x[0].detach().sigmoid()); });
  add.plain("normal", "m>m", [](X x) { return bounded(x[0] + at::normal(x[0].detach(), 0.2)); });
  add.plain("normal_of_tensors", "m>m",
            [](X x) { return bounded(at::normal(x[0].detach(), x[0].detach().abs()) + x[0]); });
  add.plain("randn", "m>m", [](X x) { return bounded(x[0] + 0.1 * torch::randn(x[0].sizes())); });
  add.plain("randint", "m>k", [](X x) { return torch::randint(kClasses, {x[0].size(0)}, at::kLong); });
  add.plain("randperm", "m>m", [](X x) { return x[0].index_select(0, torch::randperm(x[0].size(0))); });
  add.plain("random_", "k>k", [](X x) { return torch::empty_like(x[0]).random_(1, kClasses); });
  add.plain("multinomial", "m>k",
            [](X x) { return torch::multinomial(x[0].detach().narrow(1, 0, kClasses).softmax(1), 1).squeeze(1); });
  add.plain("multinomial_with_replacement", "m>m", [](X x) {
    return x[0].gather(1, torch::multinomial(x[0].detach().softmax(1), kColumns, /*replacement=*/true));
  });
  add.plain("binomial", "m>m", [](X x) {
    return bounded(x[0] + torch::binomial(torch::full_like(x[0], 5).detach(), x[0].detach().sigmoid()));
  });
  add.plain("geometric_", "m>m", [](X x) { return bounded(x[0] * blank(x[0]).geometric_(0.5)); });
  add.plain("gamma", "m>m", [](X x) { return bounded(at::_standard_gamma(x[0].abs() + 0.5)); });
  add.plain("dirichlet", "m>m", [](X x) { return at::_sample_dirichlet(x[0].detach().abs() + 0.5) * x[0]; });
  add.plain("noise_that_nobody_reads", "m>m", [](X x) {
    torch::rand({3});
    torch::randperm(7);
    const Tensor y = torch::empty({5});
    y.normal_();
    y.cauchy_();
    y.geometric_(0.5);
    y.log_normal_();
    y.exponential_();
    y.random_();
    y.bernoulli_(0.5);
    at::_standard_gamma(torch::ones({3}));
    torch::poisson(torch::ones({3}));
    at::binomial(torch::ones({3}) * 4, torch::ones({3}) * 0.5);
    at::_sample_dirichlet(torch::ones({3}));
    torch::multinomial(torch::ones({4}), 2);
    torch::dropout(x[0].detach(), 0.5, true);
    return torch::dropout(x[0], 0.5, true);
  });
  add.plain("noise_into_part", "m>m", [](X x) {
    Tensor y = own(x[0]);
    y.narrow(1, 3, 5).detach().normal_();
    return bounded(y.detach()) * x[0].sin();
  });
  add("own_generator", "m>m", [](Site& site) -> Apply {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(site.number(0, 1000));
    return [generator](X x) { return bounded(x[0] + 0.1 * torch::randn(x[0].sizes(), generator)); };
  });
}

}  // namespace duet::testing::fuzz
