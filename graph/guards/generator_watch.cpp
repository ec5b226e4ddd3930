#include "graph/guards/generator_watch.h"
#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <ATen/CPUGeneratorImpl.h>

namespace duet {

namespace {

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

GeneratorWatch::GeneratorWatch(std::vector<at::Generator> own) : generators_(std::move(own)) {
  const at::Generator& standard = at::detail::getDefaultCPUGenerator();
  if (std::find(generators_.begin(), generators_.end(), standard) == generators_.end()) generators_.push_back(standard);
}

void GeneratorWatch::start(bool captured) {
  captured_ = captured;
  note();
  at_start_ = states_;
  skipped_ = moved_before_skip_ = false;
}

void GeneratorWatch::note() {
  states_.clear();
  for (const at::Generator& generator : generators_) {
    states_.push_back(captured_ && !generator.device().is_cpu() ? at::Tensor() : state_of(generator));
  }
}

bool GeneratorWatch::moved() const {
  if (moved_before_skip_) return true;
  for (std::size_t i = 0; i < generators_.size(); ++i) {
    if (!states_[i].defined()) continue;
    const at::Tensor now = state_of(generators_[i]);  // on the host, whatever the device
    if (std::memcmp(now.const_data_ptr(), states_[i].const_data_ptr(), now.nbytes()) != 0) return true;
  }
  return false;
}

void GeneratorWatch::skip_op() {
  moved_before_skip_ = moved();
  skipped_ = true;
  for (at::Generator& generator : generators_) {
    if (!generator.device().is_cpu()) continue;
    const std::lock_guard lock(generator.mutex());
    at::check_generator<at::CPUGeneratorImpl>(generator)->random();
  }
  note();
}

void GeneratorWatch::undo_skips() {
  if (skipped_) restore();
}

void GeneratorWatch::restore() {
  skipped_ = false;
  for (std::size_t i = 0; i < generators_.size(); ++i) {
    if (!at_start_[i].defined()) continue;
    const std::lock_guard lock(generators_[i].mutex());
    generators_[i].set_state(at_start_[i]);
  }
}

}  // namespace duet
