#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

Tensor logits(const Tensor& x) { return x.narrow(1, 0, kClasses); }
Tensor signs(const Tensor& x) { return (x.detach() > 0).to(at::kFloat) * 2 - 1; }

void add_classification_losses(OpTable& add) {
  add.plain("cross_entropy", "mk>z", [](X x) { return F::cross_entropy(logits(x[0]), x[1]); });
  add.plain("cross_entropy_weighted", "mk>z", [](X x) {
    const Tensor weights = torch::tensor({1.0F, 2.0F, 0.5F, 1.5F, 1.0F, 0.25F, 1.0F, 3.0F});
    return F::cross_entropy(logits(x[0]), x[1], F::CrossEntropyFuncOptions().weight(weights).label_smoothing(0.1));
  });
  add.plain("cross_entropy_ignoring", "mk>z", [](X x) {
    return F::cross_entropy(logits(x[0]), x[1], F::CrossEntropyFuncOptions().ignore_index(3).reduction(torch::kSum)) *
           0.1;
  });
  add.plain("cross_entropy_each", "mk>z", [](X x) {
    return F::cross_entropy(logits(x[0]), x[1], F::CrossEntropyFuncOptions().reduction(torch::kNone)).square().mean();
  });
  add.plain("cross_entropy_of_shares", "mm>z",
            [](X x) { return F::cross_entropy(logits(x[0]), logits(x[1]).softmax(1)); });
  add.plain("cross_entropy_of_images", "i>z",
            [](X x) { return F::cross_entropy(x[0], x[0].detach().flip(2).argmax(1)); });
  add.plain("nll", "mk>z", [](X x) { return F::nll_loss(logits(x[0]).log_softmax(1), x[1]); });
  add.plain("multi_margin", "mk>z", [](X x) { return F::multi_margin_loss(logits(x[0]), x[1]); });
  add.plain("multilabel_margin", "mk>z", [](X x) {
    return F::multilabel_margin_loss(logits(x[0]), torch::stack({x[1], torch::full_like(x[1], -1)}, 1).repeat({1, 4}));
  });
  add.plain("binary_cross_entropy", "mb>z", [](X x) {
    return F::binary_cross_entropy(x[0].sigmoid().to(at::kDouble), x[1].to(at::kDouble)).to(at::kFloat);
  });
  add.plain("binary_cross_entropy_with_logits", "mb>z", [](X x) {
    return F::binary_cross_entropy_with_logits(
        x[0], x[1].to(at::kFloat),
        F::BinaryCrossEntropyWithLogitsFuncOptions().pos_weight(torch::full({kColumns}, 2.0)));
  });
  add.plain("ctc", "m>z", [](X x) {
    const Tensor steps = logits(x[0].narrow(0, 0, 8)).log_softmax(1).unsqueeze(1);
    return torch::ctc_loss(steps, torch::tensor({{1, 2, 3}}), at::IntArrayRef{8}, at::IntArrayRef{3});
  });
  add.plain("ctc_by_tensors", "m>z", [](X x) {
    const Tensor steps = logits(x[0].narrow(0, 0, 8)).log_softmax(1).unsqueeze(1);
    return torch::ctc_loss(steps, torch::tensor({{1, 2, 3}}), torch::tensor({8}), torch::tensor({3}));
  });
}

void add_regression_losses(OpTable& add) {
  const auto fit = [](const Tensor& x) { return x.sigmoid(); };
  add.by_name("mse_loss l1_loss smooth_l1_loss huber_loss kl_div hinge_embedding_loss", "mm>z", {.fit = fit});
  add.by_name("margin_ranking_loss triplet_margin_loss", "mmm>z", {.fit = fit});
  add.plain("soft_margin", "mm>z", [](X x) { return F::soft_margin_loss(x[0], signs(x[1])); });
  add.plain("mse_of_both", "mm>z",
            [](X x) { return F::mse_loss(x[0], x[1], F::MSELossFuncOptions().reduction(torch::kSum)) * 0.01; });
  add.plain("mse_each", "mm>z", [](X x) {
    return F::mse_loss(x[0], x[1].detach(), F::MSELossFuncOptions().reduction(torch::kNone)).amax();
  });
  add.plain("cosine_embedding", "mm>z",
            [](X x) { return F::cosine_embedding_loss(x[0], x[1], signs(x[0].select(1, 0))); });
}

}  // namespace

void add_loss_cases(OpTable& add) {
  add_classification_losses(add);
  add_regression_losses(add);
}

}  // namespace duet::testing::fuzz
