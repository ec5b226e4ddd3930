#include "graph/kernels/lstm_layer.h"
#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"

namespace duet {

namespace {

const LstmKernels& kernels() { return cpu_kernels().lstm; }

// Of one thread; pieces are taken one after the other.
class Scratch {
 public:
  explicit Scratch(std::initializer_list<int64_t> sizes) {
    int64_t all = 0;
    for (const int64_t size : sizes) all += rounded(size);
    next_ = scratch_memory(all);
  }
  float* take(int64_t size) { return std::exchange(next_, next_ + rounded(size)); }

 private:
  static int64_t rounded(int64_t size) { return (size + 15) / 16 * 16; }
  float* next_;
};

void copy(const float* from, int64_t count, float* to) { std::copy_n(from, count, to); }

void copy_or_clear(const at::Tensor& from, const at::Tensor& to) {
  float* const floats = writable_floats_of(to);
  from.defined() ? copy(floats_of(from), to.numel(), floats) : void(std::fill_n(floats, to.numel(), 0.0F));
}

// The last step first.
void copy_reversed(const float* from, int64_t steps, int64_t step, float* to) {
  for (int64_t i = 0; i < steps; ++i) copy(from + (steps - 1 - i) * step, step, to + i * step);
}

bool multiply(const LstmProduct& product) {
  return on_all_ranges(product.rows, product.rows * product.columns,
                       [&](const RowRange& rows) { return kernels().multiply(product, {rows.begin, rows.end}); });
}

constexpr int64_t kGatesTogether = 16;
int64_t parts_of(const LstmCalls& calls) {
  return number_of_parts(calls.gates() / kGatesTogether, calls.rows() * calls.gates());
}

// A layer's work; all of its tensors are in the order of its steps, which is that of time or the other one.
class LayerWork {
 public:
  explicit LayerWork(const LstmCalls& calls)
      : calls_(calls),
        rows_(calls.rows()),
        gates_(calls.gates()),
        step_(calls.batch() * calls.hidden()),
        states_{calls.steps(), calls.batch(), calls.hidden()} {
    states_.first_hidden = floats_of(calls.input(5)), states_.first_cells = floats_of(calls.input(6));
    states_.gates = writable_floats_of(calls.forward.result(3));
    states_.cells = states_.gates + rows_ * gates_;
    states_.tanh_cells = states_.cells + rows_ * calls.hidden();
  }

 protected:
  // `values` has so many floats to a step.
  const float* in_order(const float* values, int64_t step, float* reversed) const {
    if (!calls_.is_reverse()) return values;
    copy_reversed(values, calls_.steps(), step, reversed);
    return reversed;
  }
  int64_t if_reverse(int64_t size) const { return calls_.is_reverse() ? size : 0; }

  const LstmCalls& calls_;
  const int64_t rows_, gates_, step_;
  LstmStates states_;
};

class LayerForward : LayerWork {
 public:
  using LayerWork::LayerWork;

  bool run() {
    const int64_t inputs = calls_.inputs(), hidden = calls_.hidden();
    const int64_t of_inputs = kernels().panels_size(gates_, inputs), of_hidden = kernels().panels_size(gates_, hidden);
    const int64_t x_size = if_reverse(rows_ * inputs), out_size = if_reverse(rows_ * hidden);
    Scratch scratch({of_inputs, of_hidden, gates_, x_size, out_size});
    float *const input_panels = scratch.take(of_inputs), *const hidden_panels = scratch.take(of_hidden);
    kernels().pack(floats_of(calls_.input(1)), true, {0, gates_, inputs}, input_panels);
    kernels().pack(floats_of(calls_.input(2)), true, {0, gates_, hidden}, hidden_panels);
    states_.bias = bias(scratch.take(gates_));
    const float* const x = in_order(floats_of(calls_.input(0)), calls_.batch() * inputs, scratch.take(x_size));
    float* const out = writable_floats_of(calls_.forward.result(0));
    states_.out = calls_.is_reverse() ? scratch.take(out_size) : out;
    const bool numbers = multiply_inputs(x, input_panels) && run_steps(hidden_panels);

    if (calls_.is_reverse()) copy_reversed(states_.out, calls_.steps(), step_, out);
    const int64_t last = rows_ * hidden - step_;
    copy(states_.out + last, step_, writable_floats_of(calls_.forward.result(1)));
    copy(states_.cells + last, step_, writable_floats_of(calls_.forward.result(2)));
    return numbers;
  }

 private:
  const float* bias(float* sums) const {
    const float *const of_inputs = floats_of(calls_.input(3)), *const of_hidden = floats_of(calls_.input(4));
    for (int64_t g = 0; g < gates_; ++g) sums[g] = calls_.has_biases() ? of_inputs[g] + of_hidden[g] : 0;
    return sums;
  }

  // What the inputs give to the gates of all rows. oneDNN takes large batches step by step.
  bool multiply_inputs(const float* x, const float* panels) const {
    constexpr int64_t kLargeBatch = 128;
    LstmProduct product{
        calls_.batch() < kLargeBatch ? rows_ : calls_.batch(), gates_, calls_.inputs(), x, panels, states_.gates};
    bool numbers = true;
    for (int64_t row = 0; row < rows_; row += product.rows) {
      numbers = multiply(product) && numbers;
      product.a += product.rows * product.depth, product.c += product.rows * gates_;
    }
    return numbers;
  }

  bool run_steps(const float* panels) const {
    return on_all_ranges(calls_.batch(), rows_ * gates_, [&](const RowRange& batch) {
      return kernels().forward(states_, panels, {batch.begin, batch.end});
    });
  }
};

class LayerBackward : LayerWork {
 public:
  using LayerWork::LayerWork;

  bool run() {
    const int64_t inputs = calls_.inputs(), hidden = calls_.hidden();
    const int64_t of_inputs = kernels().panels_size(inputs, gates_), of_hidden = kernels().panels_size(hidden, gates_);
    const int64_t x_size = if_reverse(rows_ * inputs), out_size = if_reverse(rows_ * hidden);
    const int64_t weights_size = parts_of(calls_) * kernels().weights_gradient_size(gates_);
    Scratch scratch({of_inputs, of_hidden, weights_size, x_size, out_size});
    float *const input_panels = scratch.take(of_inputs), *const hidden_panels = scratch.take(of_hidden);
    kernels().pack(floats_of(calls_.input(1)), false, {0, inputs, gates_}, input_panels);
    kernels().pack(floats_of(calls_.input(2)), false, {0, hidden, gates_}, hidden_panels);
    weights_scratch_ = scratch.take(weights_size);
    float *const x_copy = scratch.take(x_size), *const out_copy = scratch.take(out_size);

    if (!run_steps(hidden_panels)) return false;
    const float* const x = in_order(floats_of(calls_.input(0)), calls_.batch() * inputs, x_copy);
    const bool numbers = add_weights_gradient({rows_, gates_, inputs, states_.gates, x, result(1)}) &&
                         add_hidden_weights_gradient(out_copy);
    kernels().bias_gradient(states_, result(3));
    copy(result(3), gates_, result(4));
    float* const grad_x = calls_.is_reverse() ? x_copy : result(0);
    const bool all_numbers = multiply({rows_, inputs, gates_, states_.gates, input_panels, grad_x}) && numbers;
    if (calls_.is_reverse()) copy_reversed(grad_x, calls_.steps(), calls_.batch() * inputs, result(0));
    return all_numbers;
  }

 private:
  float* result(std::size_t i) const { return writable_floats_of(calls_.backward.result(i)); }

  bool run_steps(const float* panels) const {
    copy_or_clear(calls_.grad(1), calls_.backward.result(5));
    copy_or_clear(calls_.grad(2), calls_.backward.result(6));
    LstmGradients grads{floats_of(calls_.grad(0)), 0, 0, result(5), result(6)};
    if (grads.of_out != nullptr) {
      grads.of_out_step = calls_.grad(0).stride(0), grads.of_out_sequence = calls_.grad(0).stride(1);
      if (calls_.is_reverse()) {
        grads.of_out += (calls_.steps() - 1) * grads.of_out_step;
        grads.of_out_step = -grads.of_out_step;
      }
    }
    return on_all_ranges(calls_.batch(), rows_ * gates_, [&](const RowRange& batch) {
      return kernels().backward(states_, grads, panels, {batch.begin, batch.end});
    });
  }

  bool add_weights_gradient(const LstmWeightsGradient& work) const {
    const int64_t size = kernels().weights_gradient_size(gates_);
    return on_all_parts(gates_ / kGatesTogether, parts_of(calls_), [&](int64_t part, const RowRange& range) {
      const IndexRange gates{range.begin * kGatesTogether, range.end * kGatesTogether};
      return kernels().weights_gradient(work, gates, weights_scratch_ + part * size);
    });
  }

  // By the states before each step. In the order of time the first ones are added apart.
  bool add_hidden_weights_gradient(float* before) const {
    const int64_t hidden = calls_.hidden(), later = rows_ - calls_.batch();
    const float *const first = states_.first_hidden, *const out = floats_of(calls_.forward.result(0));
    if (calls_.is_reverse()) {
      copy(first, step_, before);
      copy_reversed(out + step_, calls_.steps() - 1, step_, before + step_);
      return add_weights_gradient({rows_, gates_, hidden, states_.gates, before, result(2)});
    }
    const float* const of_gates = states_.gates + calls_.batch() * gates_;
    return (later == 0 || add_weights_gradient({later, gates_, hidden, of_gates, out, result(2)})) &&
           add_weights_gradient({calls_.batch(), gates_, hidden, states_.gates, first, result(2), later > 0});
  }

  float* weights_scratch_ = nullptr;
};

}  // namespace

bool LstmCalls::fit() const {
  constexpr int64_t kLstm = 2, kMostHidden = 499, kMostInputs = 4032, kVector = 8;  // beyond, other products
  const at::Tensor x = input(0), weights = input(2), workspace = forward.result(3);
  const bool is_lstm = kernels().forward != nullptr && x.defined() && x.dim() == 3 && weights.defined() &&
                       weights.dim() == 2 && forward.arguments[9].toInt() == kLstm;
  if (!is_lstm || rows() == 0 || batch() < 2 || inputs() < 2 || inputs() > kMostInputs) return false;
  if (hidden() % kVector != 0 || hidden() > kMostHidden) return false;
  const auto have = [](int64_t count, std::initializer_list<at::Tensor> tensors) {
    return std::ranges::all_of(tensors, [&](const at::Tensor& t) { return is_contiguous_float(t, count); });
  };
  const auto lacks_or_has = [&](std::size_t i, int64_t count) {
    return backward.lacks(kFirstGrad + i) || is_contiguous_float(grad(i), count);
  };
  const int64_t of_rows = rows() * hidden(), of_step = batch() * hidden();
  const std::vector<at::Tensor>&made = forward.results, &grads = backward.results;
  std::vector<at::Tensor> read = {made[0], workspace, grad(0), grad(1), grad(2)};
  for (std::size_t i = 0; i < kInputs; ++i) read.push_back(input(i));
  return workspace.defined() && workspace.is_contiguous() &&
         workspace.nbytes() >= (rows() * gates() + 2 * of_rows) * sizeof(float) &&
         have(rows() * inputs(), {x, grads[0]}) && have(gates() * inputs(), {input(1), grads[1]}) &&
         have(gates() * hidden(), {weights, grads[2]}) && have(gates(), {input(3), input(4), grads[3], grads[4]}) &&
         have(of_rows, {made[0]}) && have(of_step, {input(5), input(6), made[1], made[2], grads[5], grads[6]}) &&
         (backward.lacks(kFirstGrad) ||
          (grad(0).defined() && grad(0).sizes() == made[0].sizes() && grad(0).stride(2) == 1)) &&
         lacks_or_has(1, of_step) && lacks_or_has(2, of_step) &&
         share_no_memory(made, {read.begin() + 2, read.end()}) && share_no_memory(grads, read);
}

bool LstmCalls::run_forward() const { return LayerForward(*this).run(); }

bool LstmCalls::run_backward() const { return LayerBackward(*this).run(); }

}  // namespace duet
