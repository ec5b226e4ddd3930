#pragma once

#include <unordered_map>
#include <vector>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace duet {

// Notices host code that takes the address of a tensor (data_ptr(), accessor()) while a step is recorded or checked:
// what it reads or writes there would be missing in a replay.
//
// Between two ops such memory is copy-on-write with one owner. Whoever asks for a mutable address makes it plain memory
// again, at the same address and without a copy, and that can be seen. const_data_ptr() cannot.
class AddressWatch {
 public:
  AddressWatch() = default;
  ~AddressWatch() { stop(); }
  AddressWatch(const AddressWatch&) = delete;
  AddressWatch& operator=(const AddressWatch&) = delete;

  // The tensor's memory is watched from here on, if it is an allocation of its own.
  void guard(const at::Tensor& tensor);
  // From here on whoever likes may take the tensor's address: an op goes on with it in a thread of its own.
  void exempt(const at::Tensor& tensor);
  // Whether an address was taken since the last look.
  bool taken();

  // What an op is about to use is plain memory while it runs.
  void lend(const torch::jit::Stack& stack, std::size_t arguments);
  void take_back();
  // All is plain memory until resume(), for code that may take addresses.
  void pause();
  void resume();
  // Watches nothing any more.
  void stop();

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  void lend(const at::Tensor& tensor);

  std::unordered_map<const c10::StorageImpl*, Weak> guarded_, exempt_;
  std::vector<const c10::StorageImpl*> lent_;
};

}  // namespace duet
