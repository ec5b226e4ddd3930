#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

Tensor square8(const Tensor& x) { return x.narrow(0, 0, 8).narrow(1, 0, 8); }
// Symmetric and well away from singular; its eigenvalues differ.
Tensor definite(const Tensor& x) {
  const Tensor a = bounded(square8(x));
  return a.matmul(a.t()) * 0.1 + torch::diag(torch::arange(1, 9).to(at::kFloat));
}
Tensor spread(const Tensor& x, const Tensor& result) { return bounded(x + 0.3 * result.square().mean()); }

}  // namespace

void add_algebra_cases(OpTable& add) {
  const auto fit = [](const Tensor& x) { return definite(x) * 0.3; };
  const auto end = [](const Tensor& result, const Tensor& x) { return spread(x, result); };
  add.by_name("linalg_cholesky inverse det logdet linalg_svdvals pinverse linalg_lu_factor matrix_exp", "m>m",
              {fit, end});
  add.by_name("slogdet linalg_qr linalg_eigh linalg_svd", "m>m", {.fit = fit, .end = end, .result = 1});
  add.by_name("linalg_lu", "m>m", {.fit = fit, .end = end, .result = 2});
  add.plain("matmul", "mm>m", [](X x) { return bounded(x[0].matmul(x[0].t()).matmul(x[1])); });
  add.plain("mm", "mm>m", [](X x) { return bounded(x[0].mm(x[0].t().mm(x[1]))); });
  add.plain("bmm", "ss>s", [](X x) { return bounded(x[0].bmm(x[0].transpose(1, 2)).bmm(x[1])); });
  add.plain("addmm", "mm>m", [](X x) { return bounded(torch::addmm(x[0], x[1], x[1].t().mm(x[0]), 0.5, 0.25)); });
  add.plain("baddbmm", "ss>s",
            [](X x) { return bounded(torch::baddbmm(x[0], x[1].bmm(x[1].transpose(1, 2)), x[0], 0.5, 2)); });
  add.plain("addbmm", "s>s",
            [](X x) { return bounded(x[0] + torch::addbmm(x[0][0], x[0].bmm(x[0].transpose(1, 2)), x[0])); });
  add.plain("addmv", "m>m",
            [](X x) { return bounded(x[0] + torch::addmv(x[0].select(1, 0), x[0], x[0][1]).unsqueeze(1)); });
  add.plain("addr", "m>m", [](X x) { return bounded(torch::addr(x[0], x[0].select(1, 2), x[0][1])); });
  add.plain("mv", "m>m", [](X x) { return bounded(x[0] * x[0].mv(x[0][1]).unsqueeze(1)); });
  add.plain("dot", "m>m", [](X x) { return bounded(x[0] * x[0][0].dot(x[0][1])); });
  add.plain("outer", "m>m", [](X x) { return bounded(torch::outer(x[0].select(1, 0), x[0][0])); });
  add.plain("einsum", "mm>m", [](X x) { return bounded(torch::einsum("ij,kj,kl->il", {x[0], x[1], x[0]})); });
  add.plain("cross", "m>m", [](X x) {
    const Tensor a = x[0].narrow(1, 0, 3);
    return bounded(torch::cat({torch::linalg_cross(a, x[0].narrow(1, 4, 3)), x[0].narrow(1, 3, 13)}, 1));
  });
  add.plain("cholesky_solve", "m>m", [](X x) {
    return spread(x[0], torch::cholesky_solve(square8(x[0]), torch::linalg_cholesky(definite(x[0]))));
  });
  add.plain("solve", "m>m", [](X x) { return spread(x[0], torch::linalg_solve(definite(x[0]), square8(x[0]))); });
  add.plain("triangular_solve", "m>m", [](X x) {
    return spread(x[0], torch::linalg_solve_triangular(definite(x[0]).triu(), square8(x[0]), /*upper=*/true));
  });
  add.plain("householder", "m>m", [](X x) {
    return spread(
        x[0], torch::linalg_householder_product(square8(x[0]).detach() * 0.1, x[0][0].narrow(0, 0, 8).detach() * 0.1));
  });
}

}  // namespace duet::testing::fuzz
