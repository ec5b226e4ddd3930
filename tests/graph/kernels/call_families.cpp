#include "tests/graph/kernels/call_families.h"
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/randint.h>

namespace duet::testing {

namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

int any_kind(Random& random) { return static_cast<int>(random.between(0, kKinds - 1)); }

Calls products(Random& random, int kind) {
  const int64_t m = random.between(1, 9), n = random.between(1, 70), k = random.between(1, 70);
  const auto matrix = [&](int64_t rows, int64_t columns) {
    return random.coin() ? floats_of_kind({columns, rows}, kind, random).t()
                         : floats_of_kind({rows, columns}, kind, random);
  };
  const Tensor a = matrix(m, k), b = matrix(k, n), bias = floats_of_kind({n}, kind, random);
  Calls calls;
  calls.add("aten::mm", "out", {a, b}, {target({m, n})});
  calls.add("aten::addmm", "out", {bias, a, b, 1, 1}, {target({m, n})});
  return calls;
}

// All kinds of arithmetic of a, with b and `like_a`, into what out() makes.
template <class Out>
Calls arithmetic_calls(const Tensor& a, const Tensor& b, const Tensor& like_a, Out out, Random& random) {
  const double number = random.coin() ? 1.3 : -0.0;
  Calls calls;
  calls.add("aten::add", "out", {a, b, 1}, {out()});
  calls.add("aten::sub", "out", {a, b, 1}, {out()});
  calls.add("aten::div", "out", {a, b}, {out()});
  calls.add("aten::mul", "out", {a, b}, {out()});  // whose NaN lie as they fall at the end of a row
  calls.add("aten::add", "out", {b, a, -0.3}, {out()});
  calls.add("aten::sub", "out", {a, b, 3}, {out()});
  calls.add("aten::sub_", "Tensor", {a.clone(), b, 1});
  calls.add("aten::add_", "Tensor", {a.clone(), b, 1});
  calls.add("aten::mul_", "Scalar", {a.clone(), number});
  calls.add("aten::div_", "Scalar", {a.clone(), number});
  calls.add("aten::add_", "Scalar", {a.clone(), 3, 1});
  calls.add("aten::relu", "", {a}, {out()});
  calls.add("aten::threshold_backward", "grad_input", {like_a, a, number}, {out()});
  calls.add("aten::ones_like", "", {a, {}, {}, {}, {}, {}}, {at::empty_like(a)});
  for (const char* name : {"aten::neg", "aten::rsqrt", "aten::reciprocal", "aten::sigmoid", "aten::silu"})
    calls.add(name, "out", {a}, {out()});
  for (const char* name : {"aten::sigmoid_backward", "aten::silu_backward"})
    calls.add(name, "grad_input", {like_a, a}, {out()});
  for (const int power : {1, 2, 3}) calls.add("aten::pow", "Tensor_Scalar_out", {a, power}, {out()});
  calls.add("aten::copy_", "", {like_a.clone(), b, false});
  calls.add("aten::clone", "", {a, {}}, {out()});
  calls.add("aten::cat", "out", {std::vector<Tensor>{a, like_a}, -1},
            {at::full({}, 7, at::kFloat).expand(a.sizes()).repeat_interleave(2, -1)});
  return calls;
}

Calls arithmetic(Random& random, int kind) {
  const bool is_large = random.between(0, 9) == 0;
  const int64_t rows = random.between(1, is_large ? 700 : 70), columns = random.coin() ? random.between(1, 150) : 64;
  const auto make = [&](at::IntArrayRef sizes) { return floats_of_kind(sizes, kind, random); };
  const Tensor a = make({rows, columns});
  const Tensor b = random.coin()   ? make({columns})
                   : random.coin() ? make(random.one_of<Sizes>({{}, {1}, {rows, 1}}))
                                   : make({rows, columns});
  return arithmetic_calls(a, b, make({rows, columns}), [&] { return at::empty_like(a); }, random);
}

// In memory of any order, of which something lies between, or the same is broadcast.
Calls strided_arithmetic(Random& random, int kind) {
  Sizes sizes = {random.between(1, 5), random.between(1, 9), random.between(1, 6), random.between(1, 40)};
  while (random.between(0, 2) == 0 && sizes.size() > 1) sizes.erase(sizes.begin());
  if (random.between(0, 7) == 0) sizes[random.bits() % sizes.size()] = random.between(50, 400);  // not all is tried
  const auto dims = static_cast<int64_t>(sizes.size());
  const auto laid_out = [&](Sizes of) {
    const int64_t first = random.between(0, dims - 1), second = random.between(0, dims - 1);
    const auto d = static_cast<std::size_t>(random.between(0, dims - 1));
    const int64_t size = of[d], more = random.between(0, 2) == 0 ? random.between(1, 5) : 0;
    of[d] += more;
    std::swap(of[static_cast<std::size_t>(first)], of[static_cast<std::size_t>(second)]);
    const Tensor all = floats_of_kind(of, kind, random).transpose(first, second);
    return all.narrow(static_cast<int64_t>(d), random.between(0, more), size);
  };
  const auto broadcast = [&] {
    Sizes of = sizes;
    for (int64_t& size : of) size = random.coin() ? size : 1;
    const Tensor b = laid_out(of);
    return of[0] == 1 && random.coin() ? b[0] : b.expand(random.coin() ? sizes : of);
  };
  const Tensor a = random.between(0, 2) == 0 ? broadcast().expand(sizes) : laid_out(sizes);
  const auto out = [&] { return random.coin() ? at::empty_like(a) : laid_out(sizes); };
  return arithmetic_calls(a, random.coin() ? broadcast() : laid_out(sizes), laid_out(sizes), out, random);
}

Calls results(Random& random, int kind) {
  const int64_t rows = random.between(1, 9), columns = random.between(1, 300);
  const Tensor x = floats_of_kind({rows, columns}, kind, random), row = x[0].expand({7, columns});
  Calls calls;
  calls.add("aten::relu", "", {x.t()}, {at::empty_like(x.t())});
  calls.add("aten::mean", "", {x, {}}, {target({})});
  calls.add("aten::div", "Scalar", {row, random.between(1, 9)}, {target({7, columns})});
  calls.calls.back().arguments.pop_back();  // this overload has no place for a result
  calls.add("aten::select_backward", "", {x, Sizes{rows, 3, columns}, 1, -2}, {target({rows, 3, columns})});
  calls.add("aten::clone", "", {row, {}}, {target({7, columns})});
  calls.add("aten::_to_copy", "", {at::randint(9, x.sizes(), at::kLong), at::kFloat, {}, {}, {}, false, {}},
            {target({rows, columns})});
  return calls;
}

Calls embeddings(Random& random, int kind) {
  const int64_t table_rows = random.between(1, 9), width = random.between(1, 70);
  const int64_t count = random.between(0, 9) == 0 ? 400 : 5;
  const Tensor table = floats_of_kind({table_rows, width}, kind, random);
  const Tensor indices = at::randint(table_rows, {3, count}, at::kLong),
               whole = floats_of_kind({3, count, width}, kind, random);
  const Tensor grad = random.coin() ? whole : floats_of_kind({count, 3, width}, kind, random).transpose(0, 1);
  const int64_t padding = random.between(-1, table_rows - 1);
  Calls calls;
  calls.add("aten::embedding", "", {table, indices, padding, false, false}, {target({3, count, width})});
  calls.add("aten::embedding_dense_backward", "", {grad, indices, table_rows, padding, false},
            {target({table_rows, width})});
  calls.add("aten::cat", "out", {std::vector<Tensor>{whole, at::full({0}, 1, at::kFloat), whole}, -2},
            {target({3, 2 * count, width})});
  return calls;
}

Calls rows(Random& random, int kind) {
  if (random.between(0, 9) == 0) return row_calls(5, random.one_of<int64_t>({257, 1000, 5000, 16384}), kind, random);
  const int64_t count = random.between(1, random.between(0, 3) == 0 ? 700 : 40);
  return row_calls(count, random.between(1, random.between(0, 4) == 0 ? 400 : 70), kind, random);
}

Calls attention(Random& random, int kind) {
  const auto sizes = random.one_of<Sizes>({{1, 1, 16, 16},
                                           {2, 3, 32, 16},
                                           {1, 2, 48, 32},
                                           {5, 2, 64, 32},
                                           {1, 1, 80, 48},
                                           {1, 2, 128, 64},
                                           {2, 2, 65, 16},
                                           {1, 2, 33, 32},
                                           {1, 1, random.between(16, 128), 16},
                                           {1, 3, random.between(16, 128), 64}});
  return attention_calls(sizes, random.coin(), kind, random);
}

Calls batch_norm(Random& random, int kind) {
  Sizes sizes = random.one_of<Sizes>({{8, 32, 14, 14}, {4, 64, 7, 7}, {1, 1, 4, 4}, {2, 3, 16}, {1, 17, 1, 31}});
  if (random.coin()) {
    const int64_t width = random.between(1, 50);
    sizes = {random.between(1, 9), random.between(1, 20), random.between((kFewestPixels + width - 1) / width, 30),
             width};
  }
  const Sizes channels = {sizes[1]};
  const auto maybe = [&](bool given) {
    return given ? floats_of_kind(channels, random.coin() ? 0 : any_kind(random), random) : Tensor();
  };
  const bool affine = random.between(0, 3) != 0, tracks = random.between(0, 3) != 0;
  const Tensor x = floats_of_kind(sizes, kind, random), grad = floats_of_kind(sizes, any_kind(random), random);
  const Tensor weight = maybe(affine), bias = maybe(affine), mean = maybe(tracks), variance = maybe(tracks);
  const Tensor own_mean = target(channels), inverse_std = target(channels);
  const bool wants[] = {random.between(0, 5) != 0, affine && random.coin(), affine && random.coin()};
  const auto wanted = [&](int i, const Sizes& like) { return wants[i] ? target(like) : Tensor(); };
  const double epsilon = random.between(0, 5) == 0 ? 0 : 1e-5;
  Calls calls;
  calls.add("aten::native_batch_norm", "", {x, weight, bias, mean, variance, true, random.coin() ? 0.1 : 0.37, epsilon},
            {target(sizes), own_mean, inverse_std});
  calls.add("aten::native_batch_norm_backward", "",
            {grad, x, weight, mean, variance, own_mean, inverse_std, true, epsilon,
             c10::List<bool>({wants[0], wants[1], wants[2]})},
            {wanted(0, sizes), wanted(1, channels), wanted(2, channels)});
  return calls;
}

struct Pooling {
  Sizes window, stride, padding;
  bool ceil_mode = false;
};

Pooling any_pooling(Random& random) {
  const auto up_to = [&](int64_t most) { return Sizes{random.between(1, most), random.between(1, most)}; };
  Pooling p{up_to(5), up_to(4), {}, random.coin()};
  p.padding = {random.between(0, p.window[0] / 2), random.between(0, p.window[1] / 2)};
  return p;
}

Calls max_pool(Random& random, int kind) {
  const Pooling p = random.coin() ? any_pooling(random)
                                  : random.one_of<Pooling>({{{2, 2}, {2, 2}, {0, 0}},
                                                            {{3, 3}, {2, 2}, {1, 1}},
                                                            {{3, 3}, {1, 1}, {1, 1}},
                                                            {{2, 2}, {2, 2}, {1, 1}, true}});
  Sizes sizes = {random.between(1, 3), random.between(1, 9), p.window[0] + random.between(0, 30),
                 p.window[1] + random.between(0, 70)};
  if (random.coin()) sizes.erase(sizes.begin());
  const Tensor x = floats_of_kind(sizes, kind, random);
  const auto [y, indices] = at::max_pool2d_with_indices(x, p.window, p.stride, p.padding, {1, 1}, p.ceil_mode);
  const Tensor ours = at::full_like(indices, -7), grad = floats_of_kind(y.sizes(), any_kind(random), random);
  const Sizes one = {1, 1};
  Calls calls;
  calls.add("aten::max_pool2d_with_indices", "out", {x, p.window, p.stride, p.padding, one, p.ceil_mode},
            {target(y.sizes()), ours});
  calls.add("aten::max_pool2d_with_indices_backward", "grad_input",
            {grad, x, p.window, p.stride, p.padding, one, p.ceil_mode, ours}, {target(sizes)});
  return calls;
}

Calls gelu_of(const std::string& approximate, Random& random, int kind) {
  const Sizes count = {random.between(0, 3) == 0 ? random.between(10000, 70000) : random.between(1, 100)};
  const Tensor x = floats_of_kind(count, kind, random), grad = floats_of_kind(count, any_kind(random), random);
  Calls calls;
  calls.add("aten::gelu", "out", {x, approximate}, {target(count)});
  if (random.coin()) calls.add("aten::gelu_backward", "grad_input", {grad, x, approximate}, {target(count)});
  return calls;
}

Calls gelu(Random& random, int kind) { return gelu_of("tanh", random, kind); }
Calls exact_gelu(Random& random, int kind) { return gelu_of("none", random, kind); }

Calls dropout(Random& random, int) {
  const Tensor y = target({random.between(1, 9), random.between(1, 700)});
  const double p = random.one_of<double>({0.0, 0.3, 0.9, 1.0});
  Calls calls;
  calls.add("aten::bernoulli_", "float", {y, p, {}});
  calls.add("aten::div_", "Scalar", {y, p});
  return calls;
}

Calls adamw(Random& random, int kind) {
  std::vector<Tensor> tensors[4];
  for (const int64_t length : {random.between(1, 70), random.between(1, 70), random.between(1, 70000)}) {
    for (auto& list : tensors) list.push_back(floats_of_kind({length}, kind, random));
  }
  const Tensor step = at::full({}, random.between(1, 1000), at::kFloat);
  std::vector<Tensor> numbers;
  for (const double number : {1e-3, 0.9, 0.999, 0.01, 1e-8}) numbers.push_back(at::full({}, number, at::kDouble));
  const c10::IValue scale = random.coin() ? c10::IValue(at::full({}, 3.7, at::kFloat)) : c10::IValue();
  const c10::IValue skips = random.coin() ? c10::IValue(at::full({}, 1.0, at::kFloat)) : c10::IValue();
  const bool is_adam = random.coin();
  if (is_adam && random.coin()) numbers[3].fill_(0);  // else its weight decay is ATen's
  Calls calls;
  calls.add(is_adam ? "duet::fused_adam_" : "duet::fused_adamw_", "",
            {tensors[0], tensors[1], tensors[2], tensors[3], std::vector<Tensor>(), std::vector<Tensor>(3, step),
             numbers, false, false, scale, skips});
  return calls;
}

}  // namespace

Calls row_calls(int64_t rows, int64_t width, int kind, Random& random) {
  const auto numbers = [&](at::IntArrayRef sizes) {
    return floats_of_kind(sizes, random.coin() ? kind : static_cast<int>(random.between(0, 1)), random);
  };
  const Tensor x = floats_of_kind({rows, width}, kind, random), grad = numbers({rows, width});
  const Tensor weight = numbers({width}), bias = random.coin() ? numbers({width}) : Tensor();
  const Tensor mean = numbers({rows, 1}), deviation = numbers({rows, 1});
  const bool wants[] = {random.coin(), random.coin(), bias.defined()};
  const auto wanted = [&](int i, at::IntArrayRef sizes) { return wants[i] ? target(sizes) : Tensor(); };
  const Sizes shape = {width};
  Tensor classes = at::randint(0, width, {rows}, at::kLong);
  if (random.coin()) classes[0] = -100;
  const int64_t reduction = random.between(1, 2), ignored = -100;
  const auto whole = [&] { return target({rows, width}); };
  const c10::IValue none;
  Calls calls;
  calls.add("aten::sum", "IntList_out", {x, Sizes{0}, true, none}, {target({1, width})});
  calls.add("aten::native_layer_norm", "", {x, shape, weight, bias, 1e-5},
            {whole(), target({rows, 1}), target({rows, 1})});
  calls.add("aten::native_layer_norm_backward", "",
            {grad, x, shape, mean, deviation, weight, bias, c10::List<bool>({wants[0], wants[1], wants[2]})},
            {wanted(0, {rows, width}), wanted(1, {width}), wanted(2, {width})});
  calls.add("aten::_softmax", "out", {x, -1, false}, {whole()});
  calls.add("aten::_log_softmax", "out", {x, 1, false}, {whole()});
  calls.add("aten::_log_softmax_backward_data", "out", {grad, x, 1, at::kFloat}, {whole()});
  calls.add("aten::nll_loss_forward", "output", {x, classes, none, reduction, ignored}, {target({}), target({})});
  calls.add("aten::nll_loss_backward", "grad_input",
            {numbers({}), x, classes, none, reduction, ignored, at::full({}, rows, at::kFloat)}, {whole()});
  return calls;
}

Calls attention_calls(const Sizes& sizes, bool causal, int kind, Random& random) {
  // What a linear layer gives, or cut from it with two others.
  const auto heads = [&](bool cut, int of_kind) {
    const int64_t batch = sizes[0], count = sizes[1], length = sizes[2], width = sizes[3];
    const Tensor all = floats_of_kind({batch, length, (cut ? 3 : 1) * count * width}, of_kind, random);
    return all.narrow(2, 0, count * width).view({batch, length, count, width}).transpose(1, 2);
  };
  const auto numbers = [&](bool cut) { return heads(cut, random.coin() ? kind : 0); };
  const auto result = [&] { return at::full_like(heads(false, 0), 7); };
  const auto sums = [&] { return floats_of_kind({sizes[0], sizes[2], sizes[1]}, kind, random).transpose(1, 2); };
  const Tensor q = heads(true, kind), k = numbers(true), v = numbers(true);
  const c10::IValue none;
  Calls calls;
  calls.add("aten::_scaled_dot_product_flash_attention_for_cpu", "", {q, k, v, 0.0, causal, none, none},
            {result(), at::full_like(sums(), 7)});
  calls.add("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "",
            {numbers(random.coin()), q, k, v, numbers(false), sums(), 0.0, causal, none, none},
            {result(), result(), result()});
  return calls;
}

// ATen's own are some convolutions, and LSTMs where oneDNN has AVX-512; attention's backward for some lengths where
// BLAS cuts small products otherwise, as on Intel's CPUs; dropout where ATen draws from MKL; gelu with more threads
// than cores, where ATen cuts it otherwise.
const std::vector<CallFamily>& call_families() {
  const bool as_onednn = computes_as_onednn_with("AVX2") || computes_as_onednn_with("AVX512");
  static const std::vector<CallFamily> families = {
      {"products", 150, 0.5, products},
      {"arithmetic", 60, 0.6, arithmetic},
      {"strided_arithmetic", 60, 0.2, strided_arithmetic},
      {"results", 50, 1, results},
      {"embeddings", 100, 1, embeddings},
      {"rows", 70, 0.7, rows},
      {"attention", 40, 0.4, attention},
      {"convolution", 50, as_onednn ? 0.2 : 0, some_convolution},
      {"lstm", 20, computes_as_onednn_with("AVX2") ? 0.3 : 0, some_lstm},
      {"batch_norm", 70, 1, batch_norm},
      {"max_pool", 500, 1, max_pool},
      {"gelu", 100, 0.8, gelu},
      {"exact_gelu", 50, 0.8, exact_gelu},
      {"dropout", 50, 0, dropout},
      {"adamw", 100, 0.6, adamw},
  };
  return families;
}

}  // namespace duet::testing
