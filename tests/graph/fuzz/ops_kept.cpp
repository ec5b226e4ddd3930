#include <map>
#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

namespace duet::testing::fuzz {

namespace {

// An op that keeps `what` of its argument where the user sees it.
std::function<Apply(Site&)> keeping(Tensor (*what)(const Tensor&)) {
  return [what](Site& site) -> Apply {
    return [what, &user = site.user, place = site.keep_place()](X x) {
      user.kept[place] = what(x[0]);
      return x[0];
    };
  };
}

}  // namespace

void add_kept_cases(OpTable& add) {
  add("keep", "m>m", keeping([](const Tensor& x) { return x.detach(); }));
  add("keep_with_graph", "m>m", keeping([](const Tensor& x) { return x; }));
  add("keep_view", "m>m", keeping([](const Tensor& x) { return x.detach().narrow(1, 2, 3).t(); }));
  add("keep_copy", "m>m", keeping([](const Tensor& x) { return x.detach().clone(); }));
  add("keep_constant", "m>m", keeping([](const Tensor&) { return torch::arange(5); }));
  add("keep_term", "z>z", keeping([](const Tensor& x) { return x.detach(); }));
  add("keep_random_draw", "m>m", keeping([](const Tensor& x) { return torch::rand_like(x); }));
  add("keep_in_list", "m>m", [](Site& site) -> Apply {
    const std::size_t first = site.keep_place();
    for (int n = 0; n < 2; ++n) site.keep_place();
    return [&user = site.user, first](X x) {
      user.kept[first + 2] = user.kept[first + 1];
      user.kept[first + 1] = user.kept[first];
      user.kept[first] = x[0].detach();
      return x[0];
    };
  });
  add("keep_every_one", "m>m", [](Site& site) -> Apply {
    auto list = std::make_shared<Tensors>();
    return [&user = site.user, list, place = site.keep_place()](X x) {
      list->push_back(x[0].detach().sum());
      user.kept[place] = list->front();
      return x[0];
    };
  });
  add("keep_gradient", "m>m", [](Site& site) -> Apply {
    return [&user = site.user, place = site.keep_place()](X x) {
      const Tensor y = x[0] * 0.9;
      if (y.requires_grad()) y.register_hook([&user, place](const Tensor& gradient) { user.kept[place] = gradient; });
      return y;
    };
  });
  add("keep_gradient_of_weight", "m>m", [](Site& site) -> Apply {
    const Tensor weight = site.parameter({kColumns});
    weight.register_hook(
        [&user = site.user, place = site.keep_place()](const Tensor& gradient) { user.kept[place] = gradient; });
    return [weight](X x) { return bounded(x[0] * weight); };
  });
  add("state_carried_in_place", "m>m", [](Site&) -> Apply {
    const Tensor state = torch::zeros({kColumns});
    return [state](X x) {
      const Tensor y = torch::tanh(x[0] + state.clone());
      const torch::NoGradGuard no_grad;
      state.mul_(0.9).add_(y.detach().mean(0), 0.1);
      return y;
    };
  });
  add("buffer_changed_in_place", "m>m", [](Site& site) -> Apply {
    const Tensor average = site.buffer(torch::zeros({kColumns}));
    return [average](X x) {
      {
        const torch::NoGradGuard no_grad;
        average.lerp_(x[0].detach().mean(0), 0.1);
      }
      return bounded(x[0] - average.clone());
    };
  });
  add("counter_in_tensor", "m>m", [](Site& site) -> Apply {
    const Tensor count = site.buffer(torch::zeros({}, at::kLong));
    return [count](X x) { return x[0] * (count.add_(1) * 0.1).cos(); };
  });
  add("queue_of_rows", "m>m", [](Site& site) -> Apply {
    const Tensor queue = site.buffer(torch::zeros({12, kColumns}));
    return [queue](X x) {
      {
        const torch::NoGradGuard no_grad;
        queue.copy_(torch::cat({x[0].detach().narrow(0, 0, 4), queue.narrow(0, 0, 8)}));
      }
      return bounded(x[0].matmul(queue.clone().t()).matmul(queue.clone()));
    };
  });
  add("scratch_memory", "m>m", [](Site&) -> Apply {
    auto scratch = std::make_shared<std::map<int64_t, Tensor>>();  // by rows
    return [scratch](X x) {
      const torch::NoGradGuard no_grad;
      Tensor& memory = scratch->try_emplace(x[0].size(0), torch::empty_like(x[0])).first->second;
      torch::sin_out(memory, x[0]);
      return memory * 0.5;
    };
  });
  add("average_of_weights", "m>m", [](Site& site) -> Apply {
    const Tensor weight = site.parameter({kColumns});
    const Tensor average = weight.detach().clone();
    return [weight, average](X x) {
      const torch::AutoGradMode grad_mode(true);
      average.lerp_(weight.detach(), 0.1);
      return bounded(x[0] * weight + x[0].detach() * average.clone());
    };
  });
}

}  // namespace duet::testing::fuzz
