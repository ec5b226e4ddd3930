#include "checkpoint/detail/background_save.h"
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/log.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "io/plain_tensor.h"

namespace duet {

namespace {

thread_local bool is_saving = false;  // this is the thread of a save

bool fits(const at::Tensor& buffer, const at::Tensor& tensor) {
  return buffer.defined() && buffer.scalar_type() == tensor.scalar_type() && buffer.sizes() == tensor.sizes();
}

}  // namespace

// Of this process; one that it forks has none of its threads.
struct BackgroundSave::Table {
  std::mutex mutex;
  std::map<const BackgroundSave*, std::shared_future<void>> saves;
  pid_t process = getpid();
};

BackgroundSave::Table& BackgroundSave::table() {
  static auto* const saves = [] {
    // What the thread of a save uses is destroyed after what is registered from here on has run.
    log(LogLevel::kDebug, "");
    static_cast<void>(checkpoint_format::parse_folder_name("step-0"));
    std::atexit(&BackgroundSave::wait_for_all);
    return new Table();  // outlives every static object
  }();
  return *saves;
}

BackgroundSave::~BackgroundSave() {
  static_cast<void>(caught([this] { finish(); }));
}

std::optional<StateDict> BackgroundSave::stage(const StateDict& state) {
  const at::NoGradGuard no_grad;
  StateDict staged;
  std::map<std::string, at::Tensor> buffers = std::exchange(staging_, {});
  for (const auto& [name, tensor] : state.tensors()) {
    check_plain("CheckpointStore", name, tensor);
    at::Tensor& buffer = buffers[name];
    if (!fits(buffer, tensor)) {
      buffer.reset();
      try {
        buffer = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.is_cuda()));
      } catch (const c10::Error&) {
        return std::nullopt;
      }
    }
    buffer.copy_(tensor.detach());
    staged.set(name, buffer);
  }
  for (const auto& [name, value] : state.values()) staged.set(name, value);
  for (const auto& [name, buffer] : staged.tensors()) staging_[name] = buffer;
  return staged;
}

void BackgroundSave::start(std::function<void()> write) {
  const auto run = [write = std::move(write)] {
    c10::setThreadName("duet_save");
    is_saving = true;
    if (const std::exception_ptr error = caught(write)) {
      log_error(text_of(error) + "; training goes on");
      std::rethrow_exception(error);
    }
  };
  Table& known = table();  // before the thread: so that exit() waits for it
  std::shared_future<void>* entry = nullptr;
  {
    const std::lock_guard lock(known.mutex);
    if (known.process != getpid()) known.saves.clear();  // the parent's
    known.process = process_ = getpid();
    entry = &known.saves[this];  // all memory is taken before the thread, which nobody would know of otherwise
  }
  try {
    pending_ = std::async(std::launch::async, run).share();
  } catch (const std::system_error&) {  // no thread is to be had
    pending_ = std::async(std::launch::deferred, run).share();
    pending_.wait();
    is_saving = false;
  }
  const std::lock_guard lock(known.mutex);
  *entry = pending_;
}

void BackgroundSave::finish() {
  if (!pending_.valid()) return;
  if (process_ != getpid()) {
    static_cast<void>(new std::shared_future<void>(std::move(pending_)));  // the parent's, which nobody ends here
    return;
  }
  pending_.wait();
  {
    Table& known = table();
    const std::lock_guard lock(known.mutex);
    known.saves.erase(this);
  }
  std::exchange(pending_, {}).get();
}

// Nothing is thrown here: the error is its owner's.
void BackgroundSave::wait_for_all() {
  if (is_saving) return;
  Table& known = table();
  std::vector<std::shared_future<void>> waited;
  {
    const std::lock_guard lock(known.mutex);
    if (known.process != getpid()) return;
    for (const auto& [owner, written] : known.saves) waited.push_back(written);
  }
  for (const auto& written : waited) {
    if (written.valid()) written.wait();
  }
}

}  // namespace duet
