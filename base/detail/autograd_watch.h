#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace duet {

// What a step does to the graph that autograd makes of its calls, and no call tells.
class AutogradWatch {
 public:
  // Of the thread's graph from here on.
  AutogradWatch();

  // The last `count` values of the stack are arguments of a call that is about to run, or results of one that has.
  void see(const torch::jit::Stack& stack, std::size_t count);
  // While it runs, calls are those of the step's own backward pass.
  void pause(bool paused) { paused_ = paused; }

  // The first node that the step has made (Node::sequence_nr()).
  uint64_t first_node() const { return first_node_; }
  // How often each tensor of the calls, any of which a node may have saved, was changed since. None where one lies in
  // other memory by now (x.data = y), where hooks packed what nodes saved, or where a pass within the step has gone
  // through its graph.
  std::optional<std::vector<uint32_t>> changes() const;

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Seen {
    Weak tensor;
    const void* memory;
    c10::VariableVersion version_counter;
    uint32_t version;
  };
  static const void* memory_of(const c10::TensorImpl& tensor);

  uint64_t first_node_;
  std::vector<Seen> seen_;
  bool paused_ = false;
  bool is_plain_ = true;
};

}  // namespace duet
