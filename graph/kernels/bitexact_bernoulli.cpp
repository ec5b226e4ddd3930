#include <cmath>
#include <mutex>
#include <vector>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include "base/detail/bits.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/trial_data.h"

// ATen draws the numbers of a dropout one by one. Where it does so with MKL, the trial fails and ATen's kernel runs.

namespace duet {

namespace {

// y = bernoulli(p) / divisor, as dropout has it.
struct BernoulliCall {
  at::Tensor y;
  double p = 0;
  float divisor = 1;
};

// Leaves the generator as ATen would.
void run_bernoulli(const PointwiseKernels& kernels, const BernoulliCall& call, at::CPUGeneratorImpl& generator) {
  constexpr double kBits = 9007199254740992.0;  // 2^53
  const std::lock_guard lock(generator.mutex_);
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod data = engine.data();
  Bernoulli work{
      data.state_.data(),         data.next_,     data.left_ - 1,      static_cast<uint64_t>(std::ceil(call.p * kBits)),
      writable_floats_of(call.y), call.y.numel(), 0.0F / call.divisor, 1.0F / call.divisor};
  kernels.bernoulli(work);
  data.next_ = static_cast<uint32_t>(work.next);
  data.left_ = static_cast<int>(work.left + 1);
  engine.set_data(data);
  generator.set_engine(engine);
}

// From the generator's state after some words.
bool draws_alike(const PointwiseKernels& kernels, int64_t count, double p, int words) {
  at::Generator theirs = at::make_generator<at::CPUGeneratorImpl>(7);
  for (int i = 0; i < words; ++i) theirs.get<at::CPUGeneratorImpl>()->random();
  at::Generator ours = theirs.clone();
  const at::Tensor expected = at::empty({count}, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor given = at::empty_like(expected);
  expected.bernoulli_(p, theirs);
  run_bernoulli(kernels, {given, p}, *ours.get<at::CPUGeneratorImpl>());
  return same_bits(expected, given) && same_bits(theirs.get_state(), ours.get_state());
}

}  // namespace

bool bernoulli_is_bitexact(const PointwiseKernels& kernels) {
  if (kernels.bernoulli == nullptr) return false;
  const TrialGuard guard;
  for (const int64_t count : {1, 2, 17, 311, 312, 313, 624, 1000, 70001}) {
    for (const double p : {0.0, 0.1, 0.5, 0.9, 1 - 0x1p-53, 1.0}) {
      for (const int words : {0, 1, 2, 100, 623, 624, 625}) {
        if (!draws_alike(kernels, count, p, words)) return false;
      }
    }
  }
  return true;
}

namespace {

// bernoulli_.float(y, p, generator) from the default generator.
bool is_bernoulli(const OpCall& call) {
  const at::Tensor y = call.floats(0);
  return call.is("aten::bernoulli_", "float") && y.defined() && y.is_contiguous() && y.numel() > 0 &&
         call.arguments[1].isDouble() && call.arguments[2].isNone();
}

bool divides(const OpCall& call, const at::Tensor& y) {
  return call.is("aten::div_", "Scalar") && call.floats(0).is_same(y) && call.arguments[1].isDouble();
}

}  // namespace

// bernoulli_(p), with a division that follows.
void find_bitexact_bernoullis(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  const PointwiseKernels& fast = cpu_kernels().pointwise;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!is_bernoulli(calls[i])) continue;
    static Trials<int, bool> trials;
    if (!trials.of(0, kernels, [&] { return bernoulli_is_bitexact(fast); })) return;
    BernoulliCall call{calls[i].floats(0), calls[i].arguments[1].toDouble()};
    const bool followed =
        i + 1 < calls.size() && calls[i + 1].segment == calls[i].segment && divides(calls[i + 1], call.y);
    if (followed) call.divisor = static_cast<float>(calls[i + 1].arguments[1].toDouble());
    const auto run = [call] {
      run_bernoulli(cpu_kernels().pointwise, call, *at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>());
    };
    const auto first = static_cast<std::ptrdiff_t>(i);
    kernels.of_call[i] = {run, followed ? "bit-exact bernoulli, divides" : "bit-exact bernoulli", first};
    if (followed) kernels.of_call[i + 1] = {[] {}, "done above", first};
  }
}

}  // namespace duet
