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
  add.plain("vdot", "m>m", [](X x) { return bounded(x[0] - torch::vdot(x[0][0], x[0][2])); });
  add.plain("inner", "m>m", [](X x) { return bounded(torch::inner(x[0], x[0].narrow(0, 0, 8)).repeat({1, 2})); });
  add.plain("outer", "m>m", [](X x) { return bounded(torch::outer(x[0].select(1, 0), x[0][0])); });
  add.plain("kron", "m>m", [](X x) { return spread(x[0], torch::kron(x[0].narrow(0, 0, 2), x[0].narrow(0, 2, 2))); });
  add.plain("einsum", "mm>m", [](X x) { return bounded(torch::einsum("ij,kj,kl->il", {x[0], x[1], x[0]})); });
  add.plain("einsum_of_diagonals", "s>s",
            [](X x) { return bounded(torch::einsum("bth,buh,bth->buh", {x[0], x[0], x[0]})); });
  add.plain("tensordot", "ss>s",
            [](X x) { return bounded(torch::tensordot(x[0].bmm(x[0].transpose(1, 2)), x[1][0], {2}, {0})); });
  add.plain("multi_dot", "mm>m", [](X x) { return bounded(torch::linalg_multi_dot({x[0], x[1].t(), x[0]})); });
  add.plain("matrix_power", "m>m",
            [](X x) { return spread(x[0], torch::matrix_power(bounded(square8(x[0])) * 0.3, 3)); });
  add.plain("matrix_exp", "m>m", [](X x) { return spread(x[0], torch::matrix_exp(bounded(square8(x[0])) * 0.2)); });
  add.plain("cross", "m>m", [](X x) {
    const Tensor a = x[0].narrow(1, 0, 3);
    return bounded(torch::cat({torch::linalg_cross(a, x[0].narrow(1, 4, 3)), x[0].narrow(1, 3, 13)}, 1));
  });
  add.plain("cholesky", "m>m", [](X x) { return spread(x[0], torch::linalg_cholesky(definite(x[0]))); });
  add.plain("cholesky_solve", "m>m", [](X x) {
    return spread(x[0], torch::cholesky_solve(square8(x[0]), torch::linalg_cholesky(definite(x[0]))));
  });
  add.plain("inverse", "m>m", [](X x) { return spread(x[0], torch::inverse(definite(x[0]))); });
  add.plain("solve", "m>m", [](X x) { return spread(x[0], torch::linalg_solve(definite(x[0]), square8(x[0]))); });
  add.plain("triangular_solve", "m>m", [](X x) {
    return spread(x[0], torch::linalg_solve_triangular(definite(x[0]).triu(), square8(x[0]), /*upper=*/true));
  });
  add.plain("det", "m>m", [](X x) { return spread(x[0], torch::det(definite(x[0]) * 0.3)); });
  add.plain("slogdet", "m>m", [](X x) { return spread(x[0], std::get<1>(torch::slogdet(definite(x[0])))); });
  add.plain("logdet", "m>m", [](X x) { return spread(x[0], torch::logdet(definite(x[0]))); });
  add.plain("qr", "m>m", [](X x) { return spread(x[0], std::get<1>(torch::linalg_qr(definite(x[0])))); });
  add.plain("eigh", "m>m", [](X x) { return spread(x[0], std::get<0>(torch::linalg_eigh(definite(x[0])))); });
  add.plain("eigenvectors", "m>m",
            [](X x) { return spread(x[0], std::get<1>(torch::linalg_eigh(definite(x[0]))).abs()); });
  add.plain("svdvals", "m>m", [](X x) { return spread(x[0], torch::linalg_svdvals(definite(x[0]))); });
  add.plain("svd", "m>m", [](X x) { return spread(x[0], std::get<1>(torch::linalg_svd(definite(x[0]), false))); });
  add.plain("pinverse", "m>m", [](X x) { return spread(x[0], torch::linalg_pinv(definite(x[0]))); });
  add.plain("lu", "m>m", [](X x) { return spread(x[0], std::get<2>(torch::linalg_lu(definite(x[0])))); });
  add.plain("lu_factor", "m>m", [](X x) { return spread(x[0], std::get<0>(torch::linalg_lu_factor(definite(x[0])))); });
  add.plain("vander", "m>m", [](X x) { return bounded(torch::linalg_vander(x[0].select(1, 0), kColumns) + x[0]); });
  add.plain("diag", "m>m", [](X x) { return bounded(x[0].matmul(torch::diag(x[0][0]))); });
  add.plain("householder", "m>m", [](X x) {
    return spread(
        x[0], torch::linalg_householder_product(square8(x[0]).detach() * 0.1, x[0][0].narrow(0, 0, 8).detach() * 0.1));
  });
}

}  // namespace duet::testing::fuzz
