#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

// Host code that does not do the same at every step.

namespace duet::testing::fuzz {

namespace {

// An op that is another one at every `period`th call.
std::function<Apply(Site&)> now_and_then(Tensor (*apply)(bool now, X)) {
  return [apply](Site& site) -> Apply {
    return [apply, period = site.number(2, 7), calls = int64_t{0}](X x) mutable {
      return apply(++calls % period == 0, x);
    };
  };
}

// The same from some call on.
std::function<Apply(Site&)> from_some_call_on(Tensor (*apply)(bool now, X)) {
  return [apply](Site& site) -> Apply {
    return [apply, first = site.number(2, 7), calls = int64_t{0}](X x) mutable { return apply(++calls > first, x); };
  };
}

// The setting is on now and then.
template <class Set>
std::function<Apply(Site&)> under(Set set) {
  return [set](Site& site) -> Apply {
    return [set, period = site.number(2, 6), calls = int64_t{0}](X x) mutable {
      const bool on = ++calls % period == 0;
      if (on) set(true);
      const Tensor y = x[0] * torch::ones({1});
      if (on) set(false);
      return y;
    };
  };
}

void at_some_step(Site& site, std::function<void()> act) {
  site.user.between.push_back([act = std::move(act), at = site.number(2, 6)](BaseTrainer&, int64_t n) {
    if (n == at) act();
  });
}

// A weight that changes before some step.
std::function<Apply(Site&)> with_weight(void (*change)(const Tensor& weight)) {
  return [change](Site& site) -> Apply {
    const Tensor weight = site.parameter({kColumns});
    at_some_step(site, [weight, change] { change(weight); });
    return [weight](X x) { return bounded(x[0] * weight); };
  };
}

std::mt19937 random_of(Site& site) { return std::mt19937(static_cast<uint32_t>(site.number(0, 1000))); }

}  // namespace

void add_changing_cases(OpTable& add) {
  add.changing("number_times_a_term", "z>z", [](Site& site) -> Apply {
    return [kind = site.number(0, 3), factor = 1.0](X x) mutable {
      factor *= 0.97;
      if (kind == 0) return x[0] * factor;
      if (kind == 1) return x[0] + 0.1 * factor;
      return kind == 2 ? x[0] / (1 + factor) : (x[0].to(at::kBFloat16) * factor).to(at::kFloat);
    };
  });
  add.changing("another_tensor_each_time", "m>m", [](Site&) -> Apply {
    return [calls = 0.0](X x) mutable { return x[0] * torch::full({}, 1 / (1 + 0.1 * ++calls), at::kDouble); };
  });
  add.changing("anomaly_mode_now_and_then", "m>m",
               under([](bool on) { torch::autograd::AnomalyMode::set_enabled(on, /*check_nan=*/false); }));
  add.changing("deterministic_now_and_then", "m>m",
               under([](bool on) { at::globalContext().setDeterministicAlgorithms(on, false); }));
  add.changing("flushed_denormals_now_and_then", "m>m",
               under([](bool on) { at::globalContext().setFlushDenormal(on); }));
  add.changing("another_default_dtype_now_and_then", "m>m", under([](bool on) {
                 torch::set_default_dtype(caffe2::TypeMeta::fromScalarType(on ? at::kDouble : at::kFloat));
               }));
  add.changing("counter", "m>m", now_and_then([](bool now, X x) { return now ? x[0].sin() : x[0].cos(); }));
  add.changing("numbers_in_a_tensor", "m>m", now_and_then([](bool now, X x) {
                 return bounded(x[0] * torch::tensor({1.0F, now ? 2.0F : 1.0F}).repeat({8}));
               }));
  add.changing("random_draw_now_and_then", "m>m",
               now_and_then([](bool now, X x) { return now ? x[0] + 0.1 * torch::randn_like(x[0]) : x[0]; }));
  add.changing("dropout_rate", "m>m",
               from_some_call_on([](bool now, X x) { return torch::dropout(x[0], now ? 0.5 : 0.2, true); }));
  add.changing("branch_on_mt19937", "m>m", [](Site& site) -> Apply {
    return [random = random_of(site), odds = static_cast<uint32_t>(site.number(2, 6))](X x) mutable {
      return random() % odds == 0 ? x[0].relu() : x[0];
    };
  });
  add.changing("another_shape", "m>m", [](Site& site) -> Apply {
    return [random = random_of(site)](X x) mutable {
      return x[0] + x[0].narrow(1, 0, static_cast<int64_t>(1 + random() % 4)).mean(1, true);
    };
  });
  add.changing("draw_on_the_host", "m>m", [](Site&) -> Apply {
    return [](X x) {
      auto* generator = at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
      return x[0] * (1.0 - static_cast<double>(generator->random() % 100) / 200);
    };
  });
  add.changing("value_read_by_item", "m>m",
               [](Site&) -> Apply { return [](X x) { return x[0].sum().item<float>() > 0 ? x[0] : -x[0]; }; });
  add.changing("value_read_by_pointer", "m>m", [](Site&) -> Apply {
    return [](X x) { return x[0].contiguous().data_ptr<float>()[0] > 0 ? x[0] : -x[0]; };
  });
  add.changing("keep_now_and_then", "m>m", [](Site& site) -> Apply {
    return [&user = site.user, place = site.keep_place(), period = site.number(2, 5), calls = int64_t{0}](X x) mutable {
      if (++calls % period == 0) user.kept[place] = x[0].detach();
      return x[0];
    };
  });
  add.changing("state_carried_on", "m>m", [](Site& site) -> Apply {
    const std::size_t place = site.keep_place();
    site.user.kept[place] = torch::zeros({kColumns});
    return [&user = site.user, place](X x) {
      const Tensor y = torch::tanh(x[0] + user.kept[place]);
      user.kept[place] = y.detach().mean(0);
      return y;
    };
  });
  add.changing("buffer_by_set_data", "m>m", [](Site& site) -> Apply {
    const Tensor buffer = site.buffer(torch::zeros({kColumns}));
    return [buffer](X x) {
      const Tensor y = x[0] + buffer * 0.5;
      buffer.set_data(x[0].detach().mean(0));
      return bounded(y);
    };
  });
  // LibTorch computes it below the dispatcher, which looks like numbers of the host.
  add.changing("max_pool1d_without_gradient", "s>s",
               [](Site&) -> Apply { return [](X x) { return torch::max_pool1d(x[0].detach(), 3, 1, 1) * x[0]; }; });
  add.changing("cache_renewed", "m>m", [](Site& site) -> Apply {
    return [cache = Tensor(), period = site.number(2, 6), calls = int64_t{0}](X x) mutable {
      if (calls++ % period == 0) cache = torch::full({kColumns}, 0.1 * static_cast<double>(calls));
      return x[0] + cache;
    };
  });
  add.changing("another_tensor", "m>m", [](Site& site) -> Apply {
    const auto table = std::make_shared<Tensor>(torch::zeros({kColumns}));
    at_some_step(site, [table] { *table = torch::full({kColumns}, 0.5); });
    return [table](X x) { return x[0] + *table; };
  });
  add.changing("depth_that_grows", "m>m", [](Site&) -> Apply {
    return [calls = int64_t{0}](X x) mutable {
      Tensor y = x[0];
      const int64_t depth = ++calls / 4;
      for (int64_t n = 0; n < depth; ++n) y = y.sin();
      return y;
    };
  });
  add.changing("swapped_weights", "m>m", [](Site& site) -> Apply {
    auto left = site.module(nn::Linear(kColumns, kColumns), "_left");
    auto right = site.module(nn::Linear(kColumns, kColumns), "_right");
    at_some_step(site, [left, right]() mutable { std::swap(left->weight, right->weight); });
    return [left, right](X x) mutable { return bounded(right(bounded(left(x[0])))); };
  });
  add.changing("hook_added_to_weight", "m>m", with_weight([](const Tensor& w) {
                 w.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
               }));
  add.changing("weight_with_new_memory", "m>m", with_weight([](const Tensor& w) { w.set_data(w.detach() * 0.5); }));
}

}  // namespace duet::testing::fuzz
