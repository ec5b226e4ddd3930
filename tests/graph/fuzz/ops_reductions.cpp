#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

void add_reduction_cases(OpTable& add) {
  const std::vector<int64_t> rows = {1};
  add.by_name("sum mean max min median amax amin", "m>m", {.end = minus});
  add.by_name("sum.dim_IntList mean.dim nansum nanmean logsumexp amax amin", "m>m",
              {.end = minus, .more = {rows, true}});
  add.by_name("var.dim", "m>m", {.end = minus, .more = {rows, true, true}});
  add.by_name("linalg_vector_norm", "m>m", {.end = minus, .more = {1, rows, true}});
  add.by_name("max.dim min.dim median.dim mode", "m>m", {.end = minus, .more = {1, true}});
  add.by_name("cumsum logcumsumexp cummax cummin", "m>m", {.end = minus, .more = {1}});
  add.by_name("renorm", "m>m", {.more = {2, 0, 1.0}});
  add.plain("sum_to_double", "m>m",
            [](X x) { return bounded((x[0] + x[0].sum(0, false, at::kDouble)).to(at::kFloat)); });
  add.plain("sum_to_size", "m>m", [](X x) { return bounded(x[0] * x[0].sum_to_size({1, kColumns})); });
  add.plain("std", "m>m",
            [](X x) { return bounded(x[0] / ((x[0] + torch::arange(kColumns)).std(1, true, true) + 0.1)); });
  add.plain("var_mean", "m>m", [](X x) {
    const auto [var, mean] = torch::var_mean(x[0], {1}, /*unbiased=*/false, /*keepdim=*/true);
    return bounded((x[0] - mean) * (var + 1e-3).rsqrt());
  });
  add.plain("prod", "m>m", [](X x) { return bounded(x[0] + (x[0] * 0.5 + 1).prod(1, true)); });
  add.plain("aminmax", "m>m", [](X x) {
    const auto [low, high] = torch::aminmax(x[0].detach());
    return (x[0] - low) / (high - low + 0.1);
  });
  add.plain("max_with_places", "m>m", [](X x) {
    const auto [values, places] = x[0].max(1, true);
    return x[0] * 0.5 + values * places.to(at::kFloat).cos();
  });
  add.plain("norm", "m>m", [](X x) { return x[0] / (x[0].norm() + 1); });
  add.plain("norm_3", "m>m", [](X x) { return x[0] / (x[0].norm(3, 1, true) + 1); });
  add.plain("cumprod", "m>m", [](X x) { return bounded((x[0] * 0.3 + 1).cumprod(1)); });
  add.plain("cummax", "m>m", [](X x) {
    const auto [values, places] = x[0].cummax(1);
    return values + places * 0.01;
  });
  add.plain("diff", "m>m", [](X x) { return F::pad(x[0].diff(1, 1), F::PadFuncOptions({0, 1})); });
  add.plain("trapezoid", "m>m", [](X x) { return bounded(x[0] + torch::trapezoid(x[0], 1.0, 1).unsqueeze(1)); });
  add.plain("count_nonzero", "mb>m",
            [](X x) { return x[0] * (x[1].count_nonzero(at::IntArrayRef{1}).unsqueeze(1) * 0.1).cos(); });
  add.plain("all", "mb>m", [](X x) { return x[0] + x[1].all(1, true); });
  add.plain("any", "b>b", [](X x) { return x[0] | x[0].any(0); });
  add.plain("quantile", "m>m", [](X x) { return x[0] - x[0].quantile(0.3, 1, true); });
  add.plain("nanquantile", "m>m", [](X x) { return x[0] - x[0].nanquantile(0.7, 0, true); });
  add.plain("cov", "m>m", [](X x) { return bounded(x[0].matmul(x[0].t().cov())); });
  add.plain("corrcoef", "m>m",
            [](X x) { return bounded(x[0].matmul((x[0].t() + torch::arange(x[0].size(0))).corrcoef().nan_to_num())); });
  add.plain("dist", "mm>m", [](X x) { return x[0] / (torch::dist(x[0], x[1] + 0.5) + 1); });
  add.plain("pairwise_distance", "mm>m",
            [](X x) { return bounded(x[0] * torch::pairwise_distance(x[0], x[1]).unsqueeze(1)); });
  add.plain("cdist", "mm>m", [](X x) { return bounded(torch::cdist(x[0], x[1] + 0.3).matmul(x[0])); });
  add.plain("pdist", "m>m", [](X x) { return bounded(x[0] + torch::pdist(x[0] + torch::randn_like(x[0])).mean()); });
}

}  // namespace duet::testing::fuzz
