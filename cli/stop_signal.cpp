#include <duet/cli/stop_signal.h>

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace duet {

namespace {

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes it");

extern "C" void duet_on_stop_signal(int signal) {
  // 128 + signal is what shells report for a process that a signal ended.
  if (received.exchange(signal) != 0) _exit(128 + signal);
}

}  // namespace

void catch_stop_signals() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = duet_on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signal() { return received; }

}  // namespace duet
