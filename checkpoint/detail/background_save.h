#pragma once

#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <ATen/core/Tensor.h>
#include <sys/types.h>
#include "base/state_dict.h"

namespace duet {

// A save that a thread writes while training goes on, and the memory on the host that its tensors are copied to.
class BackgroundSave {
 public:
  BackgroundSave() = default;
  // Waits.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // A copy of the state in memory that is kept for the next one, tensor by tensor, page-locked for those of a GPU.
  // Nothing if there is no room for it. Throws DataError for a tensor that no file can hold. No save may be under way.
  std::optional<StateDict> stage(const StateDict& state);
  // Runs `write` in a thread, and logs what it throws. No save may be under way.
  void start(std::function<void()> write);
  // Waits, and throws what `write` threw.
  void finish();

  // Waits for every save in this process: for those who read or write checkpoints. Nothing in the thread of a save.
  static void wait_for_all();

 private:
  struct Table;
  static Table& table();

  std::map<std::string, at::Tensor> staging_;
  std::shared_future<void> pending_;
  pid_t process_ = 0;  // that began it
};

}  // namespace duet
