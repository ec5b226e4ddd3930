#include "graph/kernels/trial_data.h"
#include <algorithm>
#include <bit>
#include <utility>
#include <ATen/ops/empty.h>
#include "base/detail/memory_range.h"
#include "base/detail/split_mix.h"

namespace duet {

namespace {

float from_parts(uint32_t sign, uint32_t exponent, uint32_t mantissa) {
  return std::bit_cast<float>(sign << 31 | exponent << 23 | (mantissa & 0x7FFFFF));
}

float trial_number(TrialNumbers numbers, uint64_t random, int64_t position) {
  constexpr uint32_t kBias = 127;
  const uint32_t sign = random & 1;
  const auto mantissa = static_cast<uint32_t>(random >> 8);
  const auto choice = static_cast<uint32_t>(random >> 40);
  switch (numbers) {
    case TrialNumbers::kPlain: return from_parts(sign, kBias, mantissa);
    case TrialNumbers::kWide: return from_parts(sign, kBias - 30 + choice % 61, mantissa);
    case TrialNumbers::kTiny: return from_parts(sign, kBias - 76 + choice % 12, mantissa);
    case TrialNumbers::kDenormal:
      return position % 2 == 0 ? from_parts(0, 0, mantissa & 15) : from_parts(sign, choice % 4, mantissa);
    case TrialNumbers::kNan: return from_parts(sign, choice % 2 == 0 ? 0xFF : kBias, mantissa | 0x400000);
    case TrialNumbers::kAllNan: return from_parts(sign, 0xFF, mantissa | 0x400000);
    case TrialNumbers::kSpecial: break;
  }
  switch (choice % 512) {
    case 0: return from_parts(sign, 0, 0);
    case 1: return from_parts(sign, 0xFF, 0);
    case 2: return from_parts(0, 0xFF, 0x400000);
    case 3: return from_parts(sign, 0, mantissa);
    default: return from_parts(sign, kBias - 2 + choice % 5, mantissa);
  }
}

}  // namespace

void fill_with_trial_numbers(float* values, int64_t count, TrialNumbers numbers, uint64_t seed) {
  // Repeated from there on: making numbers must not take longer than computing with them. Twice a prime, so that no
  // rows or columns of usual sizes become alike, and what is made by turns stays so.
  constexpr int64_t kPeriod = int64_t{2} * 32749;
  for (int64_t i = 0; i < count; ++i)
    values[i] = i < kPeriod ? trial_number(numbers, next_random(seed), i) : values[i - kPeriod];
}

namespace {

std::pair<float*, int64_t> floats_of_memory(const at::Tensor& tensor) {
  const c10::Storage& memory = tensor.storage();
  return {static_cast<float*>(memory.mutable_data()), static_cast<int64_t>(memory.nbytes() / sizeof(float))};
}

}  // namespace

void fill_memory(const at::Tensor& tensor, TrialNumbers numbers, uint64_t seed) {
  const auto [values, count] = floats_of_memory(tensor);
  fill_with_trial_numbers(values, count, numbers, seed);
}

void fill_memory(const at::Tensor& tensor, float value) {
  const auto [values, count] = floats_of_memory(tensor);
  std::fill_n(values, count, value);
}

int64_t floats_past_alignment(const at::Tensor& tensor) {
  constexpr std::size_t kAlignment = 64;                                       // of ATen's allocations
  const auto memory = reinterpret_cast<std::size_t>(tensor.storage().data());  // 0: it gets some that is aligned
  const std::size_t begin = memory + static_cast<std::size_t>(tensor.storage_offset()) * sizeof(float);
  return static_cast<int64_t>(begin % kAlignment / sizeof(float));
}

at::Tensor trial_tensor(at::IntArrayRef sizes, TrialNumbers numbers, uint64_t seed) {
  const at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(at::kFloat));
  fill_memory(tensor, numbers, seed);
  return tensor;
}

at::Tensor trial_tensor(const at::Tensor& like, TrialNumbers numbers, uint64_t seed, float scale) {
  const auto span = static_cast<int64_t>(MemoryRange::elements_spanned(like.sizes(), like.strides()));
  const int64_t offset = floats_past_alignment(like);
  const at::Tensor memory = at::empty({span + offset}, at::TensorOptions().dtype(at::kFloat));
  auto* const values = static_cast<float*>(memory.mutable_data_ptr());
  fill_with_trial_numbers(values, span + offset, numbers, seed);
  if (scale != 1.0F) std::for_each_n(values, span + offset, [scale](float& value) { value *= scale; });
  return memory.as_strided(like.sizes(), like.strides(), offset);
}

}  // namespace duet
