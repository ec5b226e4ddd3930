// How long a save keeps training from going on, for a state of --mib MiB (1024) in tensors of 16 MiB on the CPU, or on
// the GPU with --cuda: `copy` is the time of copying it tensor by tensor into memory on the host (page-locked for a
// GPU), `in background` that of CheckpointStore::save_in_background, `at once` that of save(). The first save also
// takes the memory, so both are shown: `first` into memory that is new, `later` into the same again. `look` is what
// NaNGuardHook does before each save. Medians.
//
//   checkpoint_benchmark [--mib N] [--repetitions N] [--folder PATH] [--cuda]

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include "base/detail/stopwatch.h"
#include "benchmarks/figures.h"
#include "benchmarks/flags.h"
#include "checkpoint/checkpoint.h"
#include "hooks/detail/not_finite.h"

namespace duet::benchmarks {

namespace {

template <class Call>
double seconds_of(const Call& call) {
  const Stopwatch watch;
  call();
  return watch.seconds();
}

StateDict state_of(int64_t mib, const std::string& device) {
  constexpr int64_t kTensor = 16;
  StateDict state;
  for (int64_t i = 0; i * kTensor < mib; ++i) {
    const auto options = at::TensorOptions(at::kFloat).device(device);
    state.set("model.weight_" + std::to_string(i), at::full({kTensor << 18}, static_cast<double>(i), options));
  }
  return state;
}

using Buffers = std::vector<at::Tensor>;

void copy_to(Buffers& buffers, const StateDict& state, bool pinned) {
  const at::NoGradGuard no_grad;
  std::size_t index = 0;
  for (const auto& entry : state.tensors()) {
    if (index == buffers.size()) {
      buffers.push_back(at::empty(entry.second.sizes(), at::TensorOptions(at::kFloat).pinned_memory(pinned)));
    }
    buffers[index++].copy_(entry.second);
  }
}

void look(const StateDict& state) {
  std::vector<WatchedTensor> watched;
  for (const auto& [name, tensor] : state.tensors()) watched.push_back({"weight", name, tensor});
  static_cast<void>(not_finite(watched));
}

struct Times {
  std::vector<double> copy_first, copy_later, look, background_first, background_later, written, at_once;
};

void measure(const std::string& folder, const StateDict& state, bool pinned, Times& times) {
  {
    Buffers buffers;
    times.copy_first.push_back(seconds_of([&] { copy_to(buffers, state, pinned); }));
    times.copy_later.push_back(seconds_of([&] { copy_to(buffers, state, pinned); }));
  }
  times.look.push_back(seconds_of([&] { look(state); }));
  CheckpointStore store(folder, {.max_keep = 2});
  times.background_first.push_back(seconds_of([&] { store.save_in_background(1, state); }));
  times.written.push_back(seconds_of([&] { store.finish_save(); }));
  times.background_later.push_back(seconds_of([&] { store.save_in_background(2, state); }));
  store.finish_save();
  times.at_once.push_back(seconds_of([&] { store.save(3, state); }));
}

void print(const char* what, const std::vector<double>& all, double copy) {
  const double time = median(all);
  std::printf("%-24s %8.3f s   %.2f x the copy\n", what, time, time / copy);
}

}  // namespace

int main_of(const Flags& flags) {
  const int64_t mib = flags.number("--mib", 1024);
  const bool cuda = flags.has("--cuda");
  const std::string wanted = flags.text("--folder");
  const std::string folder = (wanted.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(wanted)) /
                             "checkpoint_benchmark";
  const StateDict state = state_of(mib, cuda ? "cuda:0" : "cpu");
  Times times;
  for (int64_t i = flags.number("--repetitions", 5); i > 0; --i) {
    std::filesystem::remove_all(folder);
    measure(folder, state, cuda, times);
  }
  std::filesystem::remove_all(folder);
  const double first = median(times.copy_first), later = median(times.copy_later);
  std::printf("%lld MiB on the %s\n", static_cast<long long>(mib), cuda ? "GPU" : "CPU");
  print("copy, first", times.copy_first, first);
  print("in background, first", times.background_first, first);
  print("copy, later", times.copy_later, later);
  print("look", times.look, later);
  print("in background, later", times.background_later, later);
  print("the thread's writing", times.written, later);
  print("at once", times.at_once, later);
  return 0;
}

}  // namespace duet::benchmarks

int main(int argc, char** argv) { return duet::benchmarks::main_of(duet::benchmarks::Flags(argc, argv)); }
