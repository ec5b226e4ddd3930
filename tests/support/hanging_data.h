#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <future>
#include <memory>
#include <utility>
#include <vector>
#include <signal.h>
#include "core/hook.h"
#include "core/trainer.h"
#include "data/data_loader.h"
#include "data/dataset.h"

// Data that never come, and a signal while a run waits for them.

namespace duet::testing {

// Whoever reads sample `hangs_at` never comes back; -1: all do.
class HangingData : public TensorDataset {
 public:
  HangingData(const NamedTensors& tensors, int64_t hangs_at) : TensorDataset(tensors), hangs_at_(hangs_at) {}
  Batch get(const std::vector<int64_t>& indices) const override {
    const bool hangs = std::find(indices.begin(), indices.end(), hangs_at_) != indices.end();
    if (hangs) std::promise<void>().get_future().wait();
    return TensorDataset::get(indices);
  }
  bool in_memory() const override { return false; }

 private:
  int64_t hangs_at_;
};

inline std::unique_ptr<DataLoader> hanging_loader(const NamedTensors& samples, int64_t hangs_at, int workers) {
  return std::make_unique<DataLoader>(std::make_shared<HangingData>(samples, hangs_at),
                                      DataLoaderOptions{.batch_size = 2, .num_workers = workers});
}

// Sends `signal` to these processes once a run has looked whether it is to stop so often, at one place, that it must be
// waiting for data.
inline void send_signal_in_wait(BaseTrainer& trainer, int signal, std::vector<pid_t> processes) {
  const auto watch = [signal, processes = std::move(processes)](TrainContext& context) {
    context.control.watch(
        [&context, signal, processes, last = std::pair<int64_t, int64_t>(-1, -1), looks = 0]() mutable {
          const std::pair<int64_t, int64_t> place{context.progress.step, context.evaluation.batch_index};
          looks = place == last ? looks + 1 : 0;
          last = place;
          if (looks != 4) return;
          for (const pid_t process : processes) kill(process, signal);
        });
  };
  trainer.on(HookPoint::kBeforeRun, watch, "send_signal");
}

}  // namespace duet::testing
