#include <duet/graph/parity_guard.h>

#include <ATen/core/grad_mode.h>
#include <duet/core/random.h>

#include <cstring>
#include <unordered_set>

namespace duet {

namespace {

// In-update code belongs to both runs; host code of hooks must not run twice in one update.
class WithoutHostPoints : public UpdatePoints {
 public:
  explicit WithoutHostPoints(UpdatePoints& inner) : inner_(inner) {}
  void in_update(UpdateContext& context) override { inner_.in_update(context); }

 private:
  UpdatePoints& inner_;
};

NamedTensors state_of(UpdateRule& rule, const CapturedStep& step) {
  NamedTensors state = rule.parameters();
  for (auto& item : rule.mutable_state()) state.push_back(std::move(item));
  std::unordered_set<const void*> known;
  for (const auto& item : state) known.insert(item.second.storage().unsafeGetStorageImpl());
  for (const auto& item : step.outside()) {
    if (known.count(item.second.storage().unsafeGetStorageImpl()) == 0) state.push_back(item);
  }
  return state;
}

NamedTensors copy_of(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.cpu().contiguous();
  const at::Tensor y = b.cpu().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void restore(const NamedTensors& saved, const NamedTensors& live) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    // What did not change needs no write, and an expanded buffer would refuse one.
    if (!same_bits(saved[i].second, live[i].second)) live[i].second.detach().copy_(saved[i].second);
  }
}

void add_outputs(const UpdateOutput& output, NamedTensors& tensors) {
  const auto add = [&tensors](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) tensors.emplace_back(name, tensor.detach().clone());
  };
  add("loss", output.loss);
  add("grad_norm", output.grad_norm);
  for (const auto& [name, tensor] : output.log) add(name, tensor);
}

std::string first_difference(const NamedTensors& a, const NamedTensors& b) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (a[i].first != b[i].first || !same_bits(a[i].second, b[i].second)) return a[i].first;
  }
  return a.size() == b.size() ? std::string() : "the number of values";
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

}  // namespace

ParityResult run_both_ways(CapturedStep& step, UpdateRule& rule, const Window& window, UpdatePoints& points) {
  WithoutHostPoints silent(points);
  const NamedTensors live = state_of(rule, step);
  const NamedTensors before = copy_of(live);
  const RandomStates random_before(step);

  ParityResult result;
  NamedTensors replayed;
  try {
    const UpdateOutput output = step.replay(rule, window, silent);
    replayed = copy_of(live);
    add_outputs(output, replayed);
    RandomStates(step).append_to(replayed);
  } catch (const std::exception& error) {
    result.difference = "an op that failed (" + first_line(error) + ")";
  }
  restore(before, live);
  random_before.restore(step);
  for (const auto& parameter : rule.parameters()) parameter.second.mutable_grad().reset();
  result.output = rule.run(window, silent);
  if (result.difference.empty()) {
    NamedTensors eager = live;
    add_outputs(result.output, eager);
    RandomStates(step).append_to(eager);
    result.difference = first_difference(replayed, eager);
  }

  if (points.splits()) {  // compared without the hooks; now the update that counts, with them
    restore(before, live);
    random_before.restore(step);
    if (result.difference.empty()) {
      result.output = step.replay(rule, window, points);
    } else {
      for (const auto& parameter : rule.parameters()) parameter.second.mutable_grad().reset();
      result.output = rule.run(window, points);
    }
  }
  return result;
}

}  // namespace duet
