#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

void add_reduction_cases(OpTable& add) {
  add.plain("sum", "m>m", [](X x) { return bounded(x[0] + x[0].sum()); });
  add.plain("sum_of_rows", "m>m", [](X x) { return bounded(x[0] - x[0].sum(1, true)); });
  add.plain("sum_to_double", "m>m",
            [](X x) { return bounded((x[0] + x[0].sum(0, false, at::kDouble)).to(at::kFloat)); });
  add.plain("sum_to_size", "m>m", [](X x) { return bounded(x[0] * x[0].sum_to_size({1, kColumns})); });
  add.plain("mean", "m>m", [](X x) { return x[0] - x[0].mean(0); });
  add.plain("var", "m>m", [](X x) { return bounded(x[0] * x[0].var(1, /*unbiased=*/true, true)); });
  add.plain("std", "m>m",
            [](X x) { return bounded(x[0] / ((x[0] + torch::arange(kColumns)).std(1, true, true) + 0.1)); });
  add.plain("var_mean", "m>m", [](X x) {
    const auto [var, mean] = torch::var_mean(x[0], {1}, /*unbiased=*/false, /*keepdim=*/true);
    return bounded((x[0] - mean) * (var + 1e-3).rsqrt());
  });
  add.plain("prod", "m>m", [](X x) { return bounded(x[0] + (x[0] * 0.5 + 1).prod(1, true)); });
  add.plain("amax", "m>m", [](X x) { return x[0] - x[0].amax(1, true); });
  add.plain("amin", "m>m", [](X x) { return x[0] - x[0].amin({0, 1}); });
  add.plain("aminmax", "m>m", [](X x) {
    const auto [low, high] = torch::aminmax(x[0].detach());
    return (x[0] - low) / (high - low + 0.1);
  });
  add.plain("max_with_places", "m>m", [](X x) {
    const auto [values, places] = x[0].max(1, true);
    return x[0] * 0.5 + values * places.to(at::kFloat).cos();
  });
  add.plain("min_with_places", "m>m", [](X x) { return x[0] + std::get<0>(x[0].min(0)); });
  add.plain("max_of_all", "m>m", [](X x) { return x[0] - x[0].max(); });
  add.plain("norm", "m>m", [](X x) { return x[0] / (x[0].norm() + 1); });
  add.plain("norm_3", "m>m", [](X x) { return x[0] / (x[0].norm(3, 1, true) + 1); });
  add.plain("vector_norm", "m>m", [](X x) { return bounded(x[0] * torch::linalg_vector_norm(x[0], 1, 1, true)); });
  add.plain("largest_norm", "m>m", [](X x) { return x[0] / (torch::linalg_vector_norm(x[0], INFINITY, 0, true) + 1); });
  add.plain("matrix_norm", "m>m", [](X x) { return x[0] / (torch::linalg_matrix_norm(x[0]) + 1); });
  add.plain("renorm", "m>m", [](X x) { return x[0].renorm(2, 0, 1.0); });
  add.plain("normalize", "m>m", [](X x) { return F::normalize(x[0], F::NormalizeFuncOptions().dim(1)); });
  add.plain("logsumexp", "m>m", [](X x) { return bounded(x[0] - x[0].logsumexp(1, true)); });
  add.plain("logcumsumexp", "m>m", [](X x) { return bounded(x[0].logcumsumexp(1)); });
  add.plain("cumsum", "m>m", [](X x) { return bounded(x[0].cumsum(0)); });
  add.plain("cumprod", "m>m", [](X x) { return bounded((x[0] * 0.3 + 1).cumprod(1)); });
  add.plain("cummax", "m>m", [](X x) {
    const auto [values, places] = x[0].cummax(1);
    return values + places * 0.01;
  });
  add.plain("cummin", "m>m", [](X x) { return std::get<0>(x[0].cummin(0)); });
  add.plain("diff", "m>m", [](X x) { return F::pad(x[0].diff(1, 1), F::PadFuncOptions({0, 1})); });
  add.plain("trapezoid", "m>m", [](X x) { return bounded(x[0] + torch::trapezoid(x[0], 1.0, 1).unsqueeze(1)); });
  add.plain("nansum", "m>m", [](X x) { return bounded(x[0] + x[0].nansum(1, true)); });
  add.plain("nanmean", "m>m", [](X x) { return x[0] - x[0].nanmean(1, true); });
  add.plain("count_nonzero", "mb>m",
            [](X x) { return x[0] * (x[1].count_nonzero(at::IntArrayRef{1}).unsqueeze(1) * 0.1).cos(); });
  add.plain("all", "mb>m", [](X x) { return x[0] + x[1].all(1, true); });
  add.plain("any", "b>b", [](X x) { return x[0] | x[0].any(0); });
  add.plain("trace", "m>m", [](X x) { return bounded(x[0] + x[0].narrow(1, 0, 8).narrow(0, 0, 8).trace()); });
  add.plain("quantile", "m>m", [](X x) { return x[0] - x[0].quantile(0.3, 1, true); });
  add.plain("nanquantile", "m>m", [](X x) { return x[0] - x[0].nanquantile(0.7, 0, true); });
  add.plain("cov", "m>m", [](X x) { return bounded(x[0].matmul(x[0].t().cov())); });
  add.plain("corrcoef", "m>m",
            [](X x) { return bounded(x[0].matmul((x[0].t() + torch::arange(x[0].size(0))).corrcoef().nan_to_num())); });
  add.plain("dist", "mm>m", [](X x) { return x[0] / (torch::dist(x[0], x[1] + 0.5) + 1); });
  add.plain("cosine_similarity", "mm>m", [](X x) {
    return x[0] * F::cosine_similarity(x[0], x[1], F::CosineSimilarityFuncOptions().dim(1)).unsqueeze(1);
  });
  add.plain("pairwise_distance", "mm>m",
            [](X x) { return bounded(x[0] * torch::pairwise_distance(x[0], x[1]).unsqueeze(1)); });
  add.plain("cdist", "mm>m", [](X x) { return bounded(torch::cdist(x[0], x[1] + 0.3).matmul(x[0])); });
  add.plain("pdist", "m>m", [](X x) { return bounded(x[0] + torch::pdist(x[0] + torch::randn_like(x[0])).mean()); });
  add.plain("reduction_of_image", "i>i", [](X x) { return x[0] - x[0].mean({2, 3}, true) * x[0].amax({1}, true); });
  add.plain("sum_of_sequence", "s>s",
            [](X x) { return bounded(x[0] + x[0].sum(at::IntArrayRef{0, 1}) + x[0].cumsum(1)); });
}

}  // namespace duet::testing::fuzz
