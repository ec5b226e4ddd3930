#include "hooks/stop_signal_hook.h"
#include <atomic>
#include <mutex>
#include <string.h>
#include <unistd.h>

namespace duet {

namespace {

std::atomic<int> noted{0};       // the first one
std::atomic<int> interrupts{0};  // how often SIGINT has come
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes it");

std::mutex guard;  // of what follows
int alive = 0;
std::array<struct sigaction, kStopSignals.size()> before;
struct sigaction before_pipe;

// Batch systems send several before they kill (SIGUSR1, then SIGTERM): the save goes on. Who presses Ctrl-C again means
// it.
extern "C" void duet_on_stop_signal(int signal) {
  if (signal == SIGINT && interrupts.fetch_add(1) > 0) _exit(128 + signal);
  int none = 0;
  noted.compare_exchange_strong(none, signal);
}

}  // namespace

StopSignals::StopSignals() {
  const std::lock_guard<std::mutex> lock(guard);
  if (alive++ > 0) return;
  noted = 0;
  interrupts = 0;
  struct sigaction action{};
  action.sa_handler = duet_on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], nullptr, &before[i]);
    if (before[i].sa_handler != SIG_IGN) sigaction(kStopSignals[i], &action, nullptr);
  }
  // Ctrl-C ends the `tee` that reads the log as well: the line that says so must not end this process unsaved.
  sigaction(SIGPIPE, nullptr, &before_pipe);
  if (before_pipe.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() {
  const std::lock_guard<std::mutex> lock(guard);
  if (--alive > 0) return;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &before[i], nullptr);
  sigaction(SIGPIPE, &before_pipe, nullptr);
}

int StopSignals::received() { return noted; }

bool StopSignals::are_watched() {
  const std::lock_guard<std::mutex> lock(guard);
  return alive > 0;
}

std::string StopSignals::name(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

// An evaluation on its own has no state to save: a signal ends it as if this hook were not there.
void StopSignalHook::before_run(TrainContext& context) {
  if (context.control.only_evaluates()) return;
  signals_ = std::make_unique<StopSignals>();
  context.control.watch([&control = context.control] {
    const int signal = StopSignals::received();
    if (signal != 0) control.interrupt(StopSignals::name(signal) + " asked to stop");
  });
}

void StopSignalHook::after_run(TrainContext& /*context*/) { signals_.reset(); }

}  // namespace duet
