#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>
#include "base/detail/op_tap.h"
#include "core/train_context.h"

namespace duet {

class Task;

// Runs steps op by op and looks at what each op reads and gives, until the first numbers that are not finite.
class NonFiniteTracer : private OpListener {
 public:
  // The task's parameters and buffers name places and tensors.
  explicit NonFiniteTracer(const Task& task);

  // Forward and backward of a micro-batch. After something was found it only runs.
  void watch(const Batch& batch, int64_t index, const std::function<void()>& forward_backward);
  const NonFiniteOp& result() const { return found_; }

 private:
  // The numbers of a storage, as the step has left them.
  enum class Numbers { kFinite, kInfinite, kNaN };  // the last two: meant so, by a constant
  struct Seen {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being another tensor's
    Numbers numbers;
  };
  struct Call;

  void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;
  // Of a tensor that the op reads. Nothing: it was not finite before the step, which is what was looked for.
  std::optional<Numbers> read(const Call& call, const at::Tensor& tensor);
  void check_output(const Call& call, const std::vector<at::Tensor>& outputs);
  void see(const at::Tensor& tensor, Numbers numbers);
  // `source`: where numbers come from that were not finite before the step; empty: the op made them.
  void find(const Call& call, const at::Tensor& bad, const std::vector<at::Tensor>& outputs,
            const std::string& source = "");
  bool found() const { return !found_.text.empty(); }

  std::unordered_map<const c10::StorageImpl*, std::string> parameters_, sources_;
  std::unordered_map<const c10::StorageImpl*, Seen> seen_;
  std::string last_parameter_;
  int64_t micro_batch_ = 0, samples_ = 0;
  NonFiniteOp found_;
};

}  // namespace duet
