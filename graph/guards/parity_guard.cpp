#include "graph/guards/parity_guard.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include "distributed/communicator.h"
#include "base/error.h"
#include "base/detail/error_text.h"
#include "base/log.h"
#include "base/random.h"
#include "base/detail/tensor_compare.h"

#include <unordered_set>

namespace duet {

namespace {

// In-step code belongs to both runs; host code of hooks must not run twice in one step.
class WithoutHostPoints : public StepObserver {
 public:
  explicit WithoutHostPoints(StepObserver& inner) : inner_(inner) {}
  void in_step(StepView& context) override { inner_.in_step(context); }

 private:
  StepObserver& inner_;
};

NamedTensors state_of(TrainStep& rule, const CapturedStep& step) {
  NamedTensors state = rule.parameters();
  for (auto& item : rule.mutable_state()) state.push_back(std::move(item));
  std::unordered_set<const void*> known;
  for (const auto& item : state) known.insert(item.second.storage().unsafeGetStorageImpl());
  for (const auto& item : step.outside()) {
    if (known.count(item.second.storage().unsafeGetStorageImpl()) == 0) state.push_back(item);
  }
  return state;
}

// A copy on the tensor's device, or on the host if the device has no memory left: a model that just fits is compared too.
at::Tensor spare_copy(const at::Tensor& tensor) {
  try {
    return tensor.detach().clone();
  } catch (const c10::OutOfMemoryError&) {
    if (tensor.is_cpu()) throw;
    static const bool warned = [] {
      log_warning("[GraphTrainer] too little device memory to compare a step on the device: it is compared on the host, which "
                  "is slow. graph.verify_interval 0 switches the comparison off");
      return true;
    }();
    (void)warned;
    return tensor.detach().cpu();
  }
}

NamedTensors copy_of(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, spare_copy(tensor));
  return copies;
}

// Tensor by tensor, so that one copy of the state is enough for a comparison.
void exchange(NamedTensors& saved, const NamedTensors& live) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    if (same_bits(saved[i].second, live[i].second)) continue;
    const at::Tensor now = spare_copy(live[i].second);
    live[i].second.detach().copy_(saved[i].second);
    saved[i].second = now;
  }
}

void restore(const NamedTensors& saved, const NamedTensors& live) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    // What did not change needs no write, and an expanded buffer would refuse one.
    if (!same_bits(saved[i].second, live[i].second)) live[i].second.detach().copy_(saved[i].second);
  }
}

void add_outputs(const StepResult& output, NamedTensors& tensors) {
  const auto add = [&tensors](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) tensors.emplace_back(name, tensor.detach().clone());
  };
  add("loss", output.loss);
  add("grad_norm", output.grad_norm);
  for (const auto& [name, tensor] : output.log) add(name, tensor);
}

// The default generators and those that the step names itself.
struct RandomStates {
  explicit RandomStates(CapturedStep& step) : standard(random_state()) {
    for (at::Generator& generator : step.generators()) own.push_back(generator.get_state());
  }
  void restore(CapturedStep& step) const {
    set_random_state(standard);
    for (std::size_t i = 0; i < own.size(); ++i) step.generators()[i].set_state(own[i]);
  }
  void append_to(NamedTensors& tensors) const {
    for (const auto& [name, tensor] : standard.tensors()) tensors.emplace_back("random state " + name, tensor);
    for (const at::Tensor& tensor : own) tensors.emplace_back("random state of the task's generator", tensor);
  }

  StateDict standard;
  std::vector<at::Tensor> own;
};

// A step that runs several times speaks to the other ranks once.
class SpeakOnce {
 public:
  explicit SpeakOnce(Communicator* ranks) : ranks_(ranks) {
    if (ranks_) ranks_->keep();
  }
  ~SpeakOnce() {
    if (ranks_) ranks_->live();
  }
  SpeakOnce(const SpeakOnce&) = delete;
  SpeakOnce& operator=(const SpeakOnce&) = delete;
  void repeat() {
    if (ranks_) ranks_->repeat();
  }
  bool repeated_exactly() const { return ranks_ == nullptr || ranks_->repeated_exactly(); }

 private:
  Communicator* ranks_;
};

}  // namespace

ParityResult run_both_ways(CapturedStep& step, TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points) {
  WithoutHostPoints silent(points);
  const NamedTensors live = state_of(rule, step);
  NamedTensors saved = copy_of(live);  // as it is now; after the exchange, as the replay leaves it
  const NamedTensors start = points.splits() ? copy_of(live) : NamedTensors();
  const RandomStates random_before(step);

  ParityResult result;
  // A device graph speaks for itself: there all ranks compare at the same step (GraphTrainer::plan).
  SpeakOnce ranks(rule.parameters().front().second.is_cpu() ? &rule.communicator() : nullptr);
  NamedTensors replay_only;
  try {
    add_outputs(step.replay(rule, micro_batches, silent), replay_only);
    RandomStates(step).append_to(replay_only);
    exchange(saved, live);
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& error) {
    result.difference = "an op that failed (" + first_line(error) + ")";
    restore(saved, live);
  }
  random_before.restore(step);
  for (const auto& parameter : rule.parameters()) parameter.second.mutable_grad().reset();
  ranks.repeat();
  result.output = rule.run(micro_batches, silent);
  if (result.difference.empty() && !ranks.repeated_exactly()) result.difference = "what it gives to the other ranks";
  if (result.difference.empty()) {
    NamedTensors eager_only;
    add_outputs(result.output, eager_only);
    RandomStates(step).append_to(eager_only);
    result.difference = first_difference(saved, live);
    if (result.difference.empty()) result.difference = first_difference(replay_only, eager_only);
  }

  if (points.splits()) {  // compared without the hooks; now the step that counts, with them
    restore(start, live);
    random_before.restore(step);
    ranks.repeat();
    if (result.difference.empty()) {
      result.output = step.replay(rule, micro_batches, points);
    } else {
      for (const auto& parameter : rule.parameters()) parameter.second.mutable_grad().reset();
      result.output = rule.run(micro_batches, points);
    }
  }
  return result;
}

}  // namespace duet
