#pragma once

#include <cstdint>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace duet {

// Numbers on which two kernels are compared bit by bit. They come from a generator of their own: the default one
// belongs to the model.
enum class TrialNumbers {
  kPlain,     // magnitudes from 1 to 2, full mantissas: another order of summation shows at once
  kWide,      // magnitudes from 2^-30 to 2^30
  kTiny,      // products of two are denormal or vanish
  kDenormal,  // by turns 0 to 15 times the smallest number, and numbers around the smallest normal one
  kSpecial,   // plain ones with zeros of both signs, infinities, NaN and denormals in between
  kNan,       // every second one a NaN of its own
  kAllNan,    // each one a NaN of its own: shows at every place which of two goes first
};
// Those that BLAS is asked for: which of two NaN it gives is left to it.
constexpr TrialNumbers kAllTrialNumbers[] = {TrialNumbers::kPlain, TrialNumbers::kWide, TrialNumbers::kTiny,
                                             TrialNumbers::kSpecial};

constexpr TrialNumbers kTrialNumbersWithNan[] = {TrialNumbers::kPlain,   TrialNumbers::kWide, TrialNumbers::kTiny,
                                                 TrialNumbers::kSpecial, TrialNumbers::kNan,  TrialNumbers::kAllNan};

// How kernels are called that are compared: as a replay calls them.
struct TrialGuard {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
};

at::Tensor trial_tensor(at::IntArrayRef sizes, TrialNumbers numbers, uint64_t seed);
// A float tensor with the sizes, strides and alignment of `like`, filled with numbers times `scale`.
at::Tensor trial_tensor(const at::Tensor& like, TrialNumbers numbers, uint64_t seed, float scale = 1.0F);
void fill_with_trial_numbers(float* values, int64_t count, TrialNumbers numbers, uint64_t seed);

// All of the tensor's memory, gaps included.
void fill_memory(const at::Tensor& tensor, TrialNumbers numbers, uint64_t seed);
void fill_memory(const at::Tensor& tensor, float value);

// How far the tensor begins after a 64-byte boundary; a tensor whose memory comes later begins at its storage's offset.
int64_t floats_past_alignment(const at::Tensor& tensor);

}  // namespace duet
