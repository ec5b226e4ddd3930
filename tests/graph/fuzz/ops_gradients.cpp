#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

Tensor gradient_of(const Tensor& output, const Tensor& input) {
  return torch::autograd::grad({output}, {input}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
}
// A value to differentiate by.
Tensor fresh(const Tensor& x) { return x.detach().clone().requires_grad_(true); }

struct ScaledTanh : torch::autograd::Function<ScaledTanh> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, double scale) {
    const Tensor y = x.tanh();
    context->save_for_backward({y});
    context->saved_data["scale"] = scale;
    return y * scale;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const Tensor y = context->get_saved_variables()[0];
    return {gradients[0] * (1 - y * y) * context->saved_data["scale"].toDouble(), Tensor()};
  }
};

// As gradient checkpointing does: the inner part runs once without a graph, and again in the backward.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static Tensor inner(const Tensor& x) { return x.sin().matmul(x.t()).softmax(1).matmul(x); }
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    const torch::NoGradGuard no_grad;
    return inner(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const torch::AutoGradMode grad_mode(true);
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    return torch::autograd::grad({inner(x)}, {x}, {gradients[0]});
  }
};

}  // namespace

void add_gradient_cases(OpTable& add) {
  add("gradient_penalty_of_layer", "m>z", [](Site& site) -> Apply {
    auto layer = site.module(nn::Linear(kColumns, kColumns));
    return [layer](X x) mutable {
      const Tensor input = fresh(x[0]);
      return gradient_of(torch::tanh(layer(input)).sum(), input).square().mean();
    };
  });
  add.weighted("hessian_vector_product", "m>m", {kColumns, kColumns}, [](X x, const Tensor& weight) {
    const Tensor slope = gradient_of(x[0].detach().matmul(weight).tanh().square().mean(), weight);
    const Tensor product = gradient_of((slope * weight.detach()).sum(), weight);
    return bounded(x[0].matmul(product * 10));
  });
  // MAML
  add.weighted("inner_step", "m>m", {kColumns, kColumns}, [](X x, const Tensor& weight) {
    const Tensor slope = gradient_of(x[0].matmul(weight).tanh().square().mean(), weight);
    return bounded(x[0].matmul(weight - 0.5 * slope));
  });
  add("gradient_sign_attack", "m>m", [](Site& site) -> Apply {
    auto layer = site.module(nn::Linear(kColumns, kColumns));
    return [layer](X x) mutable {
      const Tensor input = fresh(x[0]);
      const Tensor slope = torch::autograd::grad({layer(input).square().mean()}, {input})[0];
      return bounded(layer(x[0] + 0.1 * slope.sign()));
    };
  });
  add("backward_in_the_loss", "m>m", [](Site& site) -> Apply {
    const Tensor own_weight = site.user.kept.emplace_back(torch::full({kColumns}, 0.5)).requires_grad_(true);
    return [own_weight](X x) {
      (x[0].detach() * own_weight).tanh().sum().backward();
      const Tensor slope = own_weight.grad().detach().clone();
      own_weight.mutable_grad().reset();
      return bounded(x[0] * slope);
    };
  });
  add("own_function", "m>m", [](Site& site) -> Apply {
    return [scale = 0.5 + 0.1 * static_cast<double>(site.number(0, 5))](X x) { return ScaledTanh::apply(x[0], scale); };
  });
  add.plain("recomputed", "m>m", [](X x) { return Recomputed::apply(x[0]); });
  add.plain("hook_on_value", "m>m", [](X x) {
    const Tensor y = x[0].sin();
    if (y.requires_grad()) y.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
    return y;
  });
  add("hook_on_weight", "m>m", [](Site& site) -> Apply {
    const Tensor weight = site.parameter({kColumns});
    weight.register_hook([](const Tensor& gradient) { return gradient.sign() * 0.01; });
    return [weight](X x) { return bounded(x[0] * weight); };
  });
  add.plain("retained_gradient", "m>m", [](X x) {
    const Tensor y = x[0].sin();
    if (y.requires_grad()) y.retain_grad();
    return y;
  });
  add.plain("straight_through", "m>m", [](X x) { return x[0] + (x[0].round() - x[0]).detach(); });
  add.plain("without_gradient", "m>m", [](X x) {
    const torch::NoGradGuard no_grad;
    return bounded(x[0].matmul(x[0].t()).matmul(x[0]));
  });
}

}  // namespace duet::testing::fuzz
