#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

// Random places [R, 16] in a row, from values.
Tensor places_in(const Tensor& x) { return torch::argsort(x.detach(), /*stable=*/true, 1); }

}  // namespace

void add_indexing_cases(OpTable& add) {
  add.plain("index", "mk>m", [](X x) { return x[0].index({x[1]}); });
  add.plain("index_both", "mk>m", [](X x) { return bounded(x[0] + x[0].index({x[1], x[1].flip(0)}).unsqueeze(1)); });
  add.plain("index_columns", "m>m", [](X x) {
    using torch::indexing::Slice;
    return x[0].index({Slice(), torch::tensor({3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3})});
  });
  add.plain("boolean_index", "mb>z", [](X x) { return x[0].index({x[1]}).square().sum() * 0.01; });
  add.plain("masked_select", "mb>z", [](X x) { return x[0].masked_select(x[1]).cos().sum() * 0.01; });
  add.plain("nonzero", "mb>z", [](X x) { return x[0].sum() * (0.01 * x[1].nonzero().to(at::kFloat).sum()).tanh(); });
  add.plain("unique", "mk>m", [](X x) { return x[0] + std::get<0>(at::_unique(x[1])).to(at::kFloat).mean(); });
  add.plain("gather", "m>m", [](X x) { return x[0].gather(1, places_in(x[0])); });
  add.plain("take", "mk>m", [](X x) { return bounded(x[0] + x[0].take(x[1] * 3).unsqueeze(1)); });
  add.plain("index_select", "mk>m", [](X x) { return x[0].index_select(0, x[1]); });
  add.plain("masked_fill", "mb>m", [](X x) { return x[0].masked_fill(x[1], -0.5); });
  add.plain("masked_fill_tensor", "mbz>m", [](X x) { return bounded(x[0].masked_fill(x[1], x[2])); });
  add.plain("masked_scatter", "mbm>m", [](X x) { return x[0].masked_scatter(x[1], x[2]); });
  add.plain("scatter", "mm>m", [](X x) { return x[0].scatter(1, places_in(x[1]), x[1]); });
  add.plain("scatter_number", "mk>m", [](X x) { return x[0].scatter(1, x[1].unsqueeze(1), 1.0); });
  add.plain("scatter_add", "mk>m",
            [](X x) { return bounded(x[0].scatter_add(0, x[1].unsqueeze(1).expand_as(x[0]), x[0].sin())); });
  add.plain("scatter_reduce_sum", "mk>m",
            [](X x) { return bounded(x[0].scatter_reduce(0, x[1].unsqueeze(1).expand_as(x[0]), x[0].sin(), "sum")); });
  add.plain("scatter_reduce_max", "mk>m",
            [](X x) { return x[0].scatter_reduce(0, x[1].unsqueeze(1).expand_as(x[0]), x[0].sin(), "amax"); });
  add.plain("index_put", "mk>m", [](X x) { return x[0].index_put({x[1]}, x[0].cos()); });
  add.plain("index_add", "mk>m", [](X x) { return bounded(x[0].index_add(0, x[1], x[0])); });
  add.plain("index_fill", "mk>m", [](X x) { return x[0].index_fill(0, x[1], 0.1); });
  add.plain("index_reduce", "mk>m", [](X x) { return x[0].index_reduce(0, x[1], x[0].sin(), "amin"); });
  add.plain("put", "mk>m", [](X x) { return bounded(x[0].put(x[1] * 2, x[0].select(1, 0), /*accumulate=*/true)); });
  add("embedding", "k>m", [](Site& site) -> Apply {
    auto table = site.module(nn::Embedding(kClasses, kColumns));
    return [table](X x) mutable { return table(x[0]); };
  });
  add("embedding_with_padding", "k>m", [](Site& site) -> Apply {
    auto table = site.module(nn::Embedding(
        nn::EmbeddingOptions(kClasses, kColumns).padding_idx(site.number(0, 7)).scale_grad_by_freq(site.coin())));
    return [table](X x) mutable { return table(x[0]); };
  });
  add("embedding_with_largest_norm", "k>m", [](Site& site) -> Apply {
    auto table = site.module(nn::Embedding(nn::EmbeddingOptions(kClasses, kColumns).max_norm(1.5)));
    return [table](X x) mutable { return table(x[0]); };
  });
  add("embedding_bag", "k>m", [](Site& site) -> Apply {
    nn::EmbeddingBagOptions options(kClasses, kColumns);
    const int64_t mode = site.number(0, 2);
    if (mode == 0) options.mode(torch::kSum);
    if (mode == 1) options.mode(torch::kMean);
    if (mode == 2) options.mode(torch::kMax);
    auto bag = site.module(nn::EmbeddingBag(options));
    return [bag](X x) mutable { return bounded(bag(torch::stack({x[0], x[0].flip(0), x[0]}, 1))); };
  });
  add.plain("one_hot", "mk>m", [](X x) { return x[0] + torch::one_hot(x[1], kColumns); });
  add.plain("bincount", "mk>m", [](X x) { return bounded(x[0] + torch::bincount(x[1], {}, kColumns) * 0.1); });
  add.plain("histc", "m>m", [](X x) { return bounded(x[0] + torch::histc(x[0].detach(), kColumns, -1, 1) * 0.1); });
  add.plain("searchsorted", "mm>m", [](X x) {
    const Tensor sorted = std::get<0>(x[0].detach().sort(1)).contiguous();
    return bounded(x[0] * torch::searchsorted(sorted, x[1].detach().contiguous()));
  });
  add.plain("bucketize", "m>m",
            [](X x) { return x[0] + torch::bucketize(x[0].detach(), torch::tensor({-0.5F, 0.0F, 0.5F})) * 0.1; });
  add.plain("isin", "k>b",
            [](X x) { return torch::isin(x[0], torch::tensor({1, 4, 6})).unsqueeze(1).expand({-1, kColumns}); });
  add.plain("argmax", "m>k", [](X x) { return x[0].narrow(1, 0, kClasses).argmax(1); });
  add.plain("argmin", "m>k", [](X x) { return x[0].narrow(1, 5, kClasses).argmin(1); });
  add.plain("argsort", "m>m",
            [](X x) { return x[0] * x[0].argsort(/*stable=*/false, 1, /*descending=*/true).to(at::kFloat).cos(); });
  add.plain("sort", "m>m", [](X x) { return std::get<0>(x[0].sort(1)); });
  add.plain("sort_descending", "m>m", [](X x) {
    const auto [values, places] = x[0].sort(/*stable=*/true, 0, /*descending=*/true);
    return values + places * 0.05;
  });
  add.plain("topk", "m>m", [](X x) {
    const auto [values, places] = x[0].topk(8, 1);
    return torch::cat({values, places.to(at::kFloat).sin()}, 1);
  });
  add.plain("kthvalue", "m>m", [](X x) { return x[0] - std::get<0>(x[0].kthvalue(3, 1, true)); });
  add.plain("negated_indices", "k>k", [](X x) { return (kClasses - 1) - x[0]; });
}

void add_list_cases(OpTable& add) {
  add.plain("cat", "mm>m", [](X x) { return torch::cat({x[0].narrow(0, 0, 5), x[1].narrow(0, 5, x[1].size(0) - 5)}); });
  add.plain("cat_with_empty", "m>m", [](X x) { return torch::cat({torch::empty({0}), x[0]}, 1); });
  add.plain("stack", "mmm>m", [](X x) { return torch::stack({x[0], x[1], x[2]}, 1).mean(1); });
  add.plain("dstack", "mm>m", [](X x) { return torch::dstack({x[0], x[1]}).prod(2); });
  add.plain("combinations", "m>m", [](X x) { return bounded(x[0] + torch::combinations(x[0][0]).sum()); });
  add.plain("foreach_add", "mm>m", [](X x) {
    const Tensors sums = at::_foreach_add(Tensors{x[0], x[1]}, Tensors{x[1], x[0].sin()}, 0.5);
    return bounded(sums[0] * sums[1]);
  });
  add.plain("foreach_mul_", "mm>m", [](X x) {
    Tensors both = {own(x[0].detach()), own(x[1].detach())};
    at::_foreach_mul_(both, 0.5);
    at::_foreach_add_(both, Tensors{x[1].detach(), x[0].detach()});
    return bounded(both[0] + both[1] * x[0]);
  });
}

}  // namespace duet::testing::fuzz
