#include "graph/kernels/lstm_layer.h"
#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <vector>
#include <ATen/Parallel.h>
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"

namespace duet {

namespace {

// oneDNN's names: c[m][n] = a[m][k] b[k][n], where elements of a column, m, lie side by side.
struct OneDnnProduct {
  int64_t m = 0, n = 0, k = 0;
};

// Of adjust_thread_count in oneDNN's gemm_driver.cpp: as many as gain more than their start takes.
int64_t threads_that_gain(const OneDnnProduct& p, int64_t threads) {
  constexpr int64_t kVector = 8, kVectorsOfThread = 3, kFewThreads = 4;
  if (p.n > 50 && p.m <= 3) return threads;
  if (p.m > 10 * p.n && p.n < threads && p.m / threads < kVector * kVectorsOfThread)
    threads = std::max<int64_t>(p.m / kVector / kVectorsOfThread, 1);
  const double cycles = static_cast<double>(p.m * p.n * p.k) / (2 * kVector);
  const bool few = threads <= kFewThreads;
  const auto start = [few](int64_t count) { return few ? 3e3 : 4e3 + 5e2 * static_cast<double>(count); };
  if (cycles < start(few ? 1 : 2)) return 1;
  int64_t count = threads;
  while (count > 1 && start(count) * static_cast<double>(count) >= cycles * static_cast<double>(count - 1)) {
    count -= few ? 1 : count < 10 ? 2 : count < 30 ? 4 : 8;
  }
  return std::max<int64_t>(count, 1);
}

// The largest number of parts of one side, about the root of all, that leaves a whole number of the other's.
int64_t parts_near_root(int64_t threads, int64_t most) {
  int64_t parts = std::min(static_cast<int64_t>(std::sqrt(static_cast<double>(threads))), most);
  while (parts > 1 && threads % parts != 0) --parts;
  return parts;
}

// How many columns each of oneDNN's threads takes at most of a product without copies, with the present number of
// threads and AVX2: its calc_nthr_nocopy_avx. That it may cut k as well is left out.
int64_t onednn_columns_of_thread(const OneDnnProduct& p) {
  const int64_t threads = threads_that_gain(p, at::in_parallel_region() ? 1 : at::get_num_threads());
  if (threads == 1) return p.n;
  int64_t of_m = at::divup(p.m, 64), of_n = at::divup(p.n, 48);
  if (of_m == 1) of_n = threads;
  if (of_n == 1) of_m = threads;
  while (of_m * of_n > threads) --(of_m > of_n ? of_m : of_n);
  while (of_m * of_n < threads) ++(of_m < of_n ? of_m : of_n);
  if (of_m * of_n > threads && of_m > 1 && of_n > 1) {
    of_n = of_m <= of_n ? threads / parts_near_root(threads, at::divup(p.m, 16)) : parts_near_root(threads, p.n);
  }
  return at::divup(p.n, of_n);
}

// Step by step from the last one to the first.
void copy_reversed(const float* from, int64_t steps, int64_t step, float* to) {
  for (int64_t i = 0; i < steps; ++i) std::copy_n(from + (steps - 1 - i) * step, step, to + i * step);
}

// The workspace: gates, cells and their tanh of all rows. A layer that reads from the end has its inputs and the hidden
// states before each step in there as well, in the order of its steps, and oneDNN's backward does not look at others.
struct LstmWorkspace {
  float *gates, *cells, *tanh_cells, *x, *before;

  explicit LstmWorkspace(const LstmCalls& calls)
      : gates(writable_floats_of(calls.forward.result(3))),
        cells(gates + calls.rows() * calls.gates()),
        tanh_cells(cells + calls.rows() * calls.hidden()),
        x(tanh_cells + calls.rows() * calls.hidden()),
        before(x + calls.rows() * calls.inputs()) {}
  static int64_t floats(const LstmCalls& calls) {
    const int64_t reversed =
        calls.is_reverse() ? calls.rows() * (calls.inputs() + calls.hidden()) + calls.batch() * calls.hidden() : 0;
    return calls.rows() * (calls.gates() + 2 * calls.hidden()) + reversed;
  }
};

// What both directions of the computation share.
class LstmWork {
 public:
  explicit LstmWork(const LstmCalls& calls)
      : calls_(calls),
        rows_(calls.rows()),
        gates_(calls.gates()),
        inputs_(calls.inputs()),
        hidden_(calls.hidden()),
        x_of_step_(calls.batch() * inputs_),
        out_of_step_(calls.batch() * hidden_),
        memory_(calls),
        states_{calls.steps(), calls.batch(), hidden_} {
    states_.first_hidden = floats_of(calls.input(5)), states_.first_cells = floats_of(calls.input(6));
    states_.gates = memory_.gates, states_.cells = memory_.cells, states_.tanh_cells = memory_.tanh_cells;
  }

 protected:
  static const LstmKernels& kernels() { return cpu_kernels().lstm; }
  LstmProduct product(int64_t rows, int64_t columns, int64_t depth) const {
    LstmProduct product{rows, columns, depth, nullptr, depth, 1};
    product.terms = calls_.order.product_terms, product.by_parity = calls_.order.by_parity;
    product.rows_of_thread = onednn_columns_of_thread({columns, rows, depth});
    return product;
  }
  // Returns the end of the panels.
  static float* pack(LstmProduct& product, const float* b, bool transposed, float* panels) {
    kernels().pack(product, b, transposed, panels);
    return panels + panels_size(product);
  }
  static bool multiply(const LstmProduct& product) {
    return on_all_ranges(product.rows, product.rows * product.columns,
                         [&](const IndexRange& rows) { return kernels().multiply(product, rows); });
  }
  const float* x() const { return calls_.is_reverse() ? memory_.x : floats_of(calls_.input(0)); }
  // All steps of some of the batch.
  bool run_steps(const std::function<bool(const IndexRange& batch)>& run) const {
    return on_all_ranges(calls_.batch(), rows_ * gates_, run);
  }

  const LstmCalls& calls_;
  const int64_t rows_, gates_, inputs_, hidden_, x_of_step_, out_of_step_;
  const LstmWorkspace memory_;
  LstmStates states_;
};

class LstmForward : LstmWork {
 public:
  using LstmWork::LstmWork;

  bool run() {
    // oneDNN takes large batches step by step.
    constexpr int64_t kLargeBatch = 128;
    LstmProduct of_inputs = product(calls_.batch() < kLargeBatch ? rows_ : calls_.batch(), gates_, inputs_);
    LstmProduct of_step = product(calls_.batch(), gates_, hidden_);
    float* const scratch = scratch_memory(panels_size(of_inputs) + panels_size(of_step) + gates_);
    float* const hidden_panels = pack(of_inputs, floats_of(calls_.input(1)), true, scratch);
    float* const bias = pack(of_step, floats_of(calls_.input(2)), true, hidden_panels);
    sum_biases(bias);
    float* const out = writable_floats_of(calls_.forward.result(0));
    states_.bias = bias, states_.out = out;
    if (calls_.is_reverse()) {
      copy_reversed(floats_of(calls_.input(0)), calls_.steps(), x_of_step_, memory_.x);
      std::copy_n(states_.first_hidden, out_of_step_, memory_.before);
      states_.out = memory_.before + out_of_step_;
    }
    const auto forward = [&](const IndexRange& batch) { return kernels().forward(states_, of_step, batch); };
    const bool numbers = multiply_inputs(of_inputs) && run_steps(forward);

    if (calls_.is_reverse()) copy_reversed(states_.out, calls_.steps(), out_of_step_, out);
    const int64_t last = rows_ * hidden_ - out_of_step_;
    std::copy_n(states_.out + last, out_of_step_, writable_floats_of(calls_.forward.result(1)));
    std::copy_n(states_.cells + last, out_of_step_, writable_floats_of(calls_.forward.result(2)));
    return numbers;
  }

 private:
  void sum_biases(float* sums) const {
    if (!calls_.has_biases()) return void(std::fill_n(sums, gates_, 0.0F));
    const float *const of_inputs = floats_of(calls_.input(3)), *const of_hidden = floats_of(calls_.input(4));
    for (int64_t g = 0; g < gates_; ++g) sums[g] = of_inputs[g] + of_hidden[g];
  }

  // What the inputs give to the gates of all rows.
  bool multiply_inputs(LstmProduct work) const {
    work.a = x(), work.c = states_.gates;
    bool numbers = true;
    for (int64_t row = 0; row < rows_; row += work.rows) {
      numbers = multiply(work) && numbers;
      work.a += work.rows * inputs_, work.c += work.rows * gates_;
    }
    return numbers;
  }
};

class LstmBackward : LstmWork {
 public:
  explicit LstmBackward(const LstmCalls& calls) : LstmWork(calls), of_out_(calls.grad(0)) {
    if (of_out_.defined() && of_out_.stride(2) != 1) of_out_ = of_out_.contiguous();
  }

  bool run() {
    LstmProduct of_x = product(rows_, inputs_, gates_), of_step = product(calls_.batch(), hidden_, gates_);
    of_weights_ = product(inputs_, gates_, rows_);
    float* const scratch = scratch_memory(panels_size(of_x) + panels_size(of_step) + panels_size(of_weights_) +
                                          gates_ * std::max(inputs_, hidden_));
    float* const hidden_panels = pack(of_x, floats_of(calls_.input(1)), false, scratch);
    float* const gate_panels = pack(of_step, floats_of(calls_.input(2)), false, hidden_panels);
    const LstmGradients grads = gradients();
    const auto backward = [&](const IndexRange& batch) { return kernels().backward(states_, grads, of_step, batch); };
    if (!run_steps(backward)) return false;
    kernels().bias_gradient(states_, result(3));
    std::copy_n(result(3), gates_, result(4));
    of_weights_.c = pack(of_weights_, states_.gates, false, gate_panels);
    of_x.a = states_.gates, of_x.c = calls_.is_reverse() ? memory_.x : result(0);  // x is no longer needed
    const bool numbers = make_input_weights_gradient() && make_hidden_weights_gradient() && multiply(of_x);
    if (calls_.is_reverse()) copy_reversed(of_x.c, calls_.steps(), x_of_step_, result(0));
    return numbers;
  }

 private:
  float* result(std::size_t i) const { return writable_floats_of(calls_.backward.result(i)); }

  LstmGradients gradients() const {
    const auto start = [&](const at::Tensor& from, at::Tensor to) { from.defined() ? to.copy_(from) : to.zero_(); };
    start(calls_.grad(1), calls_.backward.result(5));
    start(calls_.grad(2), calls_.backward.result(6));
    LstmGradients grads{floats_of(of_out_), 0, 0, result(5), result(6)};
    if (grads.of_out == nullptr) return grads;
    grads.of_out_step = of_out_.stride(0), grads.of_out_sequence = of_out_.stride(1);
    if (calls_.is_reverse()) {
      grads.of_out += (calls_.steps() - 1) * grads.of_out_step;
      grads.of_out_step = -grads.of_out_step;
    }
    return grads;
  }

  // c += the inputs or states before some rows, transposed, times the gradients of those rows' gates.
  bool add_rows(const IndexRange& rows, const float* in, int64_t columns) const {
    LstmProduct work = product(columns, gates_, rows.end - rows.begin);
    work.a = in, work.a_row = 1, work.a_column = columns;
    work.panels = of_weights_.panels + rows.begin * of_weights_.panel / rows_, work.panel = of_weights_.panel;
    work.c = of_weights_.c, work.adds = true, work.terms = calls_.order.gradient_terms;
    return multiply(work);
  }
  bool make_input_weights_gradient() const {
    std::fill_n(of_weights_.c, gates_ * inputs_, 0.0F);
    const bool numbers = add_rows({0, rows_}, x(), inputs_);
    kernels().transpose(of_weights_.c, inputs_, gates_, result(1));
    return numbers;
  }
  // By the states before each step. Those that oneDNN does not copy are the results and, added apart, the first ones.
  bool make_hidden_weights_gradient() const {
    std::fill_n(of_weights_.c, gates_ * hidden_, 0.0F);
    const int64_t first = calls_.batch();
    const bool numbers =
        calls_.is_reverse()
            ? add_rows({0, rows_}, memory_.before, hidden_)
            : (rows_ == first || add_rows({first, rows_}, floats_of(calls_.forward.result(0)), hidden_)) &&
                  add_rows({0, first}, states_.first_hidden, hidden_);
    kernels().transpose(of_weights_.c, hidden_, gates_, result(2));
    return numbers;
  }

  at::Tensor of_out_;
  LstmProduct of_weights_;  // b: the gradients of gates; c: that of weights, transposed
};

bool have_floats(int64_t count, std::initializer_list<at::Tensor> tensors) {
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) { return is_contiguous_float(tensor, count); });
}

// Whether the backward is given what the forward was given and made.
bool are_of_one_layer(const LstmCalls& calls) {
  constexpr std::size_t kForwardReverse = 7, kBackwardReverse = 13, kBiases = 12, kBackwardBiases = 17;
  const std::vector<c10::IValue>&forward = calls.forward.arguments, &backward = calls.backward.arguments;
  const auto is_same = [](const c10::IValue& value, const at::Tensor& tensor) {
    return value.isTensor() && value.toTensor().is_same(tensor);
  };
  for (std::size_t i = 0; i < LstmCalls::kInputs; ++i) {
    if (!forward[i].isTensor() || !is_same(backward[i], forward[i].toTensor())) return false;
  }
  for (std::size_t i = 0; i < 3; ++i) {
    if (!is_same(backward[LstmCalls::kInputs + i], calls.forward.result(i))) return false;
  }
  return is_same(backward[LstmCalls::kWorkspace], calls.forward.result(3)) &&
         forward[kForwardReverse].toBool() == backward[kBackwardReverse].toBool() &&
         forward[kBiases].toBool() == backward[kBackwardBiases].toBool();
}

// oneDNN computes products of vectors otherwise, hidden states from 500 on by kernels that copy, and more columns than
// 4032 block by block.
bool are_taken_so(const LstmCalls& calls) {
  constexpr int64_t kLstm = 2, kVector = 8, kMostHidden = 499, kMostInputs = 4032;
  const at::Tensor x = calls.input(0), weights = calls.input(2);
  const bool is_lstm = cpu_kernels().lstm.forward != nullptr && x.defined() && x.dim() == 3 && weights.defined() &&
                       weights.dim() == 2 && calls.forward.arguments[9].toInt() == kLstm;
  return is_lstm && calls.rows() > 0 && calls.batch() > 1 && calls.inputs() > 1 && calls.inputs() <= kMostInputs &&
         calls.hidden() % kVector == 0 && calls.hidden() <= kMostHidden;
}

}  // namespace

bool LstmCalls::fit() const {
  if (!are_taken_so(*this) || !are_of_one_layer(*this)) return false;
  const std::vector<at::Tensor>&made = forward.results, &grads = backward.results;
  const at::Tensor& workspace = made[3];
  const int64_t states = batch() * hidden();
  const auto lacks_or_is_like = [&](std::size_t i, const at::Tensor& of) {
    return backward.lacks(kFirstGrad + i) || (grad(i).defined() && grad(i).sizes() == of.sizes());
  };
  std::vector<at::Tensor> given, read = {made[0], workspace, grad(0), grad(1), grad(2)};
  for (std::size_t i = 0; i < kInputs; ++i) given.push_back(input(i));
  read.insert(read.end(), given.begin(), given.end());
  return workspace.is_contiguous() &&
         workspace.nbytes() >= static_cast<std::size_t>(LstmWorkspace::floats(*this)) * sizeof(float) &&
         have_floats(rows() * inputs(), {given[0], grads[0]}) &&
         have_floats(gates() * inputs(), {given[1], grads[1]}) &&
         have_floats(gates() * hidden(), {given[2], grads[2]}) && have_floats(gates(), {grads[3], grads[4]}) &&
         (!has_biases() || have_floats(gates(), {given[3], given[4]})) && have_floats(rows() * hidden(), {made[0]}) &&
         have_floats(states, {given[5], given[6], made[1], made[2], grads[5], grads[6]}) &&
         lacks_or_is_like(0, made[0]) && lacks_or_is_like(1, made[1]) && lacks_or_is_like(2, made[2]) &&
         share_no_memory(made, given) && share_no_memory(grads, read);
}

bool LstmCalls::run_forward() const { return LstmForward(*this).run(); }

bool LstmCalls::run_backward() const { return LstmBackward(*this).run(); }

}  // namespace duet
