#include "core/detail/flop_counter.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <string_view>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

namespace duet {

namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

double numbers_in(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }
double length(const at::Tensor& tensor, int64_t dim) { return static_cast<double>(tensor.size(dim)); }

// Places that a kernel is laid on: input, weight, bias, stride, padding, dilation, transposed.
double places_of_convolution(Inputs inputs) {
  const at::Tensor input = inputs[0].toTensor(), weight = inputs[1].toTensor();
  if (inputs[6].toBool()) return numbers_in(input) / length(input, 1);
  const auto at = [](const c10::IValue& list, int64_t dim) {
    const std::vector<int64_t> values = list.toIntVector();
    return values.size() == 1 ? values[0] : values[static_cast<std::size_t>(dim)];
  };
  double places = length(input, 0);
  for (int64_t dim = 0; dim < input.dim() - 2; ++dim) {
    const int64_t reach = at(inputs[5], dim) * (weight.size(dim + 2) - 1) + 1;
    const int64_t room = input.size(dim + 2) + 2 * at(inputs[4], dim) - reach;
    places *= static_cast<double>(room / at(inputs[3], dim) + 1);
  }
  return places;
}

// grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
double flops_of_convolution_backward(Inputs inputs) {
  const at::Tensor places = inputs[inputs[7].toBool() ? 1 : 0].toTensor();
  const auto mask = inputs[10].toBoolList();
  const int products = (mask.get(0) ? 1 : 0) + (mask.get(1) ? 1 : 0);
  return 2 * products * numbers_in(places) / length(places, 1) * numbers_in(inputs[2].toTensor());
}

// Two products forward, five backward, of which the scores are one.
double flops_of_attention(const c10::FunctionSchema& schema, Inputs inputs, bool is_backward) {
  const auto input = [&](const char* name) {
    return inputs[static_cast<std::size_t>(*schema.argumentIndexWithName(name))];
  };
  const at::Tensor query = input("query").toTensor(), value = input("value").toTensor();
  const double rows = length(query, -2), columns = length(value, -2), within = std::min(rows, columns);
  const double pairs =
      input("is_causal").toBool() ? within * (within + 1) / 2 + (rows - within) * columns : rows * columns;
  const double of_scores = length(query, -1), of_values = length(value, -1);
  const double heads = numbers_in(query) / (rows * of_scores);
  return 2 * heads * pairs * (is_backward ? 3 * of_scores + 2 * of_values : of_scores + of_values);
}

std::atomic<FlopCounter*> active{nullptr};

}  // namespace

double flops_of(const at::RecordFunction& call) {
  const std::string_view op = call.name();
  const Inputs inputs = call.inputs();
  static const std::set<std::string_view> kProducts = {"aten::mm", "aten::bmm", "aten::mv", "aten::dot"};
  static const std::set<std::string_view> kSums = {"aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::addmv",
                                                   "aten::_addmm_activation"};
  if (const bool is_sum = kSums.contains(op); is_sum || kProducts.contains(op)) {
    const at::Tensor left = inputs[is_sum ? 1 : 0].toTensor(), right = inputs[is_sum ? 2 : 1].toTensor();
    return 2 * numbers_in(left) * (right.dim() == 1 ? 1 : length(right, -1));
  }
  if (op == "aten::convolution" || op == "aten::_convolution")
    return 2 * places_of_convolution(inputs) * numbers_in(inputs[1].toTensor());
  if (op == "aten::convolution_backward") return flops_of_convolution_backward(inputs);
  const auto schema = op.starts_with("aten::_scaled_dot_product_") ? call.operator_schema() : std::nullopt;
  const auto has = [&](const char* name) { return schema && schema->argumentIndexWithName(name).has_value(); };
  const bool is_fused = has("is_causal") && op.find("_math") == std::string_view::npos;  // that one calls products
  return is_fused ? flops_of_attention(*schema, inputs, op.ends_with("_backward")) : 0;
}

struct FlopCounter::Span : at::ObserverContext {};

// Its callback belongs to the thread: only one thread at a time comes to it.
FlopCounter::FlopCounter() {
  FlopCounter* none = nullptr;
  counts_ = active.compare_exchange_strong(none, this);
  if (!counts_) return;
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&begin_span, &end_span).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  if (!counts_) return;
  at::removeCallback(callback_);
  active = nullptr;
}

double FlopCounter::flops() const {
  double sum = 0;
  for (const auto& [type, flops] : by_type_) sum += flops;
  return sum;
}

at::ScalarType FlopCounter::dtype() const {
  const auto most = std::ranges::max_element(by_type_, {}, [](const auto& item) { return item.second; });
  return most == by_type_.end() ? at::kFloat : most->first;
}

// What a counted call calls itself is in its count.
std::unique_ptr<at::ObserverContext> FlopCounter::begin_span(const at::RecordFunction& call) {
  FlopCounter* const self = active;
  if (self == nullptr) return nullptr;
  const double flops = self->depth_ > 0 ? 0 : flops_of(call);
  if (self->depth_ == 0 && flops == 0) return nullptr;
  if (flops > 0) self->by_type_[call.inputs()[1].toTensor().scalar_type()] += flops;
  ++self->depth_;
  return std::make_unique<Span>();
}

void FlopCounter::end_span(const at::RecordFunction& /*call*/, at::ObserverContext* span) {
  if (FlopCounter* const self = active; span != nullptr && self != nullptr) --self->depth_;
}

double least_seconds(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  double least = 1e9;
  for (const Clock::time_point begin = Clock::now(); since(begin) < 0.1;) {
    const Clock::time_point now = Clock::now();
    run();
    least = std::min(least, since(now));
  }
  return least;
}

PeakFlops measure_peak_flops(at::Device device, at::ScalarType dtype) {
  const int64_t side = device.is_cpu() ? 384 : 8192;
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const at::Tensor factor = at::ones({side, side}, options);
  at::Tensor product = at::empty({side, side}, options);
  const double seconds = least_seconds([&] {
    at::mm_out(product, factor, factor);
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(product.device().index());
  });
  const auto number = static_cast<double>(side);
  return {2 * number * number * number / seconds,
          c10::str("products of ", side, " x ", side, " ", dtype, " numbers on ", device, ", as measured")};
}

}  // namespace duet
