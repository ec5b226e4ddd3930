#include <duet/graph/parity_guard.h>

#include <ATen/core/grad_mode.h>
#include <duet/core/random.h>

#include <cstring>

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

NamedTensors state_of(UpdateRule& rule) {
  NamedTensors state = rule.parameters();
  for (auto& item : rule.mutable_state()) state.push_back(std::move(item));
  return state;
}

NamedTensors copy_of(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

void restore(const NamedTensors& saved, const NamedTensors& live) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < saved.size(); ++i) live[i].second.detach().copy_(saved[i].second);
}

void add_outputs(const UpdateOutput& output, NamedTensors& tensors) {
  const auto add = [&tensors](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) tensors.emplace_back(name, tensor.detach().clone());
  };
  add("loss", output.loss);
  add("grad_norm", output.grad_norm);
  for (const auto& [name, tensor] : output.log) add(name, tensor);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.cpu().contiguous();
  const at::Tensor y = b.cpu().contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::string first_difference(const NamedTensors& a, const NamedTensors& b) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (a[i].first != b[i].first || !same_bits(a[i].second, b[i].second)) return a[i].first;
  }
  return a.size() == b.size() ? std::string() : "the number of values";
}

NamedTensors random_tensors() {
  NamedTensors tensors;
  const StateDict state = random_state();
  for (const auto& [name, tensor] : state.tensors()) tensors.emplace_back("random state " + name, tensor.clone());
  return tensors;
}

}  // namespace

ParityResult run_both_ways(CapturedStep& step, UpdateRule& rule, const Window& window, UpdatePoints& points) {
  WithoutHostPoints silent(points);
  const NamedTensors live = state_of(rule);
  const NamedTensors before = copy_of(live);
  const StateDict random_before = random_state();

  UpdateOutput replayed_output = step.replay(rule, window, silent);
  NamedTensors replayed = copy_of(live);
  add_outputs(replayed_output, replayed);
  for (auto& item : random_tensors()) replayed.push_back(std::move(item));

  restore(before, live);
  set_random_state(random_before);
  for (const auto& parameter : rule.parameters()) parameter.second.mutable_grad().reset();
  ParityResult result;
  result.output = rule.run(window, silent);
  NamedTensors eager = copy_of(live);
  add_outputs(result.output, eager);
  for (auto& item : random_tensors()) eager.push_back(std::move(item));
  result.difference = first_difference(replayed, eager);

  if (points.splits()) {  // compared without the hooks; now the update that counts, with them
    restore(before, live);
    set_random_state(random_before);
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
