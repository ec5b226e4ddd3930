#include <torch/torch.h>
#include "tests/graph/fuzz/op_kind.h"

// Host code that follows values which it reads back, and nothing else.

namespace duet::testing::fuzz {

namespace {

// A buffer that the user sets between steps.
Tensor set_between(Site& site, const Tensor& buffer, const std::function<double(int64_t)>& value) {
  const Tensor held = site.buffer(buffer);
  site.user.between.push_back([held, value](BaseTrainer&, int64_t n) { held.fill_(value(n)); });
  return held;
}

}  // namespace

void add_read_cases(OpTable& add) {
  add("item_of_a_buffer", "m>m", [](Site& site) -> Apply {
    const Tensor flag = set_between(site, torch::zeros({}), [at = site.number(2, 6)](int64_t n) { return n > at; });
    return [flag](X x) { return flag.item<float>() > 0 ? x[0].sin() : x[0].cos(); };
  });
  add("item_of_a_buffer_that_takes_turns", "m>m", [](Site& site) -> Apply {
    const Tensor count =
        set_between(site, torch::zeros({}, at::kLong), [period = site.number(2, 3)](int64_t n) { return n % period; });
    return [count](X x) { return x[0] * (0.5 + count.item<double>() / 4); };
  });
  add("any_of_a_mask", "m>m", [](Site& site) -> Apply {
    const Tensor mask = set_between(site, torch::zeros({kColumns}, at::kBool),
                                    [period = site.number(2, 6)](int64_t n) { return n % period == 0; });
    return [mask](X x) { return mask.any().item<bool>() ? x[0].masked_fill(mask, 0.5) : x[0]; };
  });
  add("equal_buffers", "m>m", [](Site& site) -> Apply {
    const Tensor table = set_between(site, torch::zeros({kColumns}),
                                     [at = site.number(2, 6)](int64_t n) { return n == at ? 1.0 : 0.0; });
    return [table, other = torch::zeros({kColumns})](X x) { return at::equal(table, other) ? x[0] : x[0] + table; };
  });
  add("item_then_counted_up", "m>m", [](Site& site) -> Apply {
    const Tensor count = site.buffer(torch::zeros({}, at::kLong));
    return [count, first = site.number(2, 6)](X x) {
      const bool late = (count >= first).item<bool>();
      count.add_(1);
      return late ? x[0].sin() : x[0].cos();
    };
  });
  add("counted_up_then_item", "m>m", [](Site& site) -> Apply {
    const Tensor count = site.buffer(torch::zeros({}, at::kLong));
    return [count, first = site.number(2, 6)](X x) {
      return count.add_(1).item<int64_t>() > first ? x[0].sin() : x[0].cos();
    };
  });
  add.weighted("item_of_a_parameter", "m>m", {kColumns}, [](X x, const Tensor& weight) {
    return bounded((weight[0] > weight[1]).item<bool>() ? x[0] * weight : x[0] + weight);
  });
  add("item_of_the_values", "m>m",
      [](Site&) -> Apply { return [](X x) { return (x[0].narrow(0, 0, 1).sum() > 0).item<bool>() ? x[0] : -x[0]; }; });
}

}  // namespace duet::testing::fuzz
