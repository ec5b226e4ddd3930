#include "core/detail/kernel_clock.h"
#include <algorithm>
#include <atomic>
#include <map>
#include <string_view>
#include <utility>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include "base/detail/stack_tensors.h"
#include "base/detail/stopwatch.h"

namespace duet {

namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

// Of many short runs the fastest: nothing makes one shorter than it is.
template <class Run>
double least_seconds(Run run) {
  double least = 1e9;
  for (const Stopwatch all; all.seconds() < 0.1;) {
    const Stopwatch one;
    run();
    least = std::min(least, one.seconds());
  }
  return least;
}

// How often a kernel is laid on. Inputs: input, weight, bias, stride, padding, dilation, transposed.
double places_of_convolution(Inputs inputs) {
  const at::Tensor input = inputs[0].toTensor(), weight = inputs[1].toTensor();
  const auto list = [&](std::size_t i) {
    std::vector<int64_t> values = inputs[i].toIntVector();  // or one for all dimensions
    values.resize(static_cast<std::size_t>(input.dim()) - 2, values.front());
    return values;
  };
  const std::vector<int64_t> places =
      inputs[6].toBool() ? input.sizes().vec()
                         : at::native::conv_output_size(input.sizes(), weight.sizes(), list(4), list(3), list(5));
  return static_cast<double>(c10::multiply_integers(places) / places[1]);
}

double bytes_of(Inputs inputs) {
  double bytes = 0;
  for (const c10::IValue& input : inputs) {
    for_each_tensor(input, [&bytes](const at::Tensor& tensor) {
      if (tensor.has_storage()) bytes += static_cast<double>(std::min(tensor.nbytes(), tensor.storage().nbytes()));
    });
  }
  return bytes;
}

// Its callback belongs to the thread: only one thread at a time comes to it.
std::atomic<KernelClock*> active{nullptr};

}  // namespace

double flops_of(const at::RecordFunction& call) {
  const std::string_view op = call.name();
  const Inputs inputs = call.inputs();
  const auto numbers = [&](std::size_t i) { return static_cast<double>(inputs[i].toTensor().numel()); };
  const auto length = [&](std::size_t i, int64_t dim) { return static_cast<double>(inputs[i].toTensor().size(dim)); };
  static const std::map<std::string_view, std::size_t> kProducts = {
      {"aten::mm", 0}, {"aten::bmm", 0}, {"aten::addmm", 1}, {"aten::baddbmm", 1}, {"aten::_addmm_activation", 1}};
  if (const auto left = kProducts.find(op); left != kProducts.end())
    return 2 * numbers(left->second) * length(left->second + 1, -1);
  if (op == "aten::convolution" || op == "aten::_convolution") return 2 * places_of_convolution(inputs) * numbers(1);
  // grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
  if (op == "aten::convolution_backward") {
    const std::size_t places = inputs[7].toBool() ? 1 : 0;
    const auto mask = inputs[10].toBoolList();
    const int products = (mask.get(0) ? 1 : 0) + (mask.get(1) ? 1 : 0);
    return 2 * products * numbers(places) / length(places, 1) * numbers(2);
  }
  // The one called math consists of products that are counted.
  if (!op.starts_with("aten::_scaled_dot_product_") || op.find("_math") != std::string_view::npos) return 0;
  const std::size_t query = op.ends_with("_backward") ? 1 : 0, value = query + 2;
  const double of_scores = length(query, -1), of_values = length(value, -1);
  const double pairs = numbers(query) / of_scores * length(value, -2);
  return 2 * pairs * (query == 0 ? of_scores + of_values : 3 * of_scores + 2 * of_values);
}

double measure_peak_flops(at::Device device, at::ScalarType dtype) {
  const int64_t side = device.is_cpu() ? 384 : 8192;
  const at::Tensor factor = at::ones({side, side}, at::TensorOptions().dtype(dtype).device(device));
  at::Tensor product = at::empty_like(factor);
  const double seconds = least_seconds([&] {
    at::mm_out(product, factor, factor);
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(product.device().index());
  });
  const auto number = static_cast<double>(side);
  return 2 * number * number * number / seconds;
}

double measure_peak_bytes(int64_t working_set) {
  const int64_t half = std::clamp<int64_t>(working_set, 1 << 16, 1 << 28) / 8;  // floats
  const at::Tensor from = at::ones({half}), to = at::empty({half});
  return 8.0 * static_cast<double>(half) / least_seconds([&] { to.copy_(from); });
}

struct KernelClock::Span : at::ObserverContext {
  Stopwatch time;
  bool is_product = false;
};

KernelClock::KernelClock() {
  KernelClock* none = nullptr;
  if (!active.compare_exchange_strong(none, this)) return;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin_span, &end_span)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

KernelClock::~KernelClock() {
  if (active != this) return;
  at::removeCallback(callback_);
  active = nullptr;
}

std::unique_ptr<at::ObserverContext> KernelClock::begin_span(const at::RecordFunction& function) {
  KernelClock* const clock = active;
  if (clock == nullptr) return nullptr;
  auto span = std::make_unique<Span>();
  const double flops = clock->products_ > 0 ? 0 : flops_of(function);
  span->is_product = flops > 0;
  clock->step_.flops += flops;
  if (flops > 0) clock->step_.dtype = function.inputs()[1].toTensor().scalar_type();
  if (flops == 0 && clock->depth_ == 0) clock->step_.bytes += bytes_of(function.inputs());
  clock->products_ += span->is_product ? 1 : 0;
  ++clock->depth_;
  span->time = {};
  return span;
}

void KernelClock::end_span(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  KernelClock* const clock = active;
  if (context == nullptr || clock == nullptr) return;
  const auto& span = *static_cast<Span*>(context);
  if (--clock->depth_ == 0) clock->step_.seconds += span.time.seconds();
  clock->products_ -= span.is_product ? 1 : 0;
}

KernelWork KernelClock::end_step() { return steps_.emplace_back(std::exchange(step_, {})); }

KernelWork KernelClock::median_step() const {
  if (steps_.empty()) return {};
  std::vector<KernelWork> sorted = steps_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle, {}, &KernelWork::seconds);
  KernelWork work = *middle;
  work.least_seconds = work.seconds;
  for (const KernelWork& step : steps_) {
    if (step.flops == work.flops && step.bytes == work.bytes)
      work.least_seconds = std::min(work.least_seconds, step.seconds);
  }
  return work;
}

}  // namespace duet
