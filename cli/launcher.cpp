#include "cli/launcher.h"
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/commands/commands.h"
#include "hooks/detail/stop_signals.h"

namespace duet {

namespace {

namespace fs = std::filesystem;

// While it lives the signals wait until somebody asks for them. Those that are ignored (nohup) stay so.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int signal : kStopSignals) {
      struct sigaction action{};
      sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_IGN) sigaddset(&held_, signal);
    }
    sigaddset(&held_, SIGCHLD);
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &standard, nullptr);
    sigprocmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() { give_back(); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  int wait() const {
    int signal = 0;
    while (sigwait(&held_, &signal) != 0) {
    }
    return signal;
  }
  void give_back() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t held_{}, before_{};
};

pid_t parent_of(const fs::path& process) {
  std::ifstream file(process / "stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};  // "7 (a name) S 1 ..."
  const std::size_t end = text.rfind(')');
  pid_t parent = 0;
  if (end != std::string::npos && end + 4 < text.size()) {
    std::from_chars(text.data() + end + 4, text.data() + text.size(), parent);
  }
  return parent;
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code failed;
  for (fs::directory_iterator entry("/proc", failed), end; !failed && entry != end; entry.increment(failed)) {
    const auto process = parse_number<pid_t>(entry->path().filename().string());
    if (process && parent_of(entry->path()) == parent) children.push_back(*process);
  }
  return children;
}

// What is still being started is ended.
void pass_on(int signal, pid_t launcher) {
  const std::vector<pid_t> processes = children_of(launcher);
  for (const pid_t process : processes) kill(process, signal);
  if (processes.empty()) kill(launcher, signal);
}

// The launcher stands still meanwhile: it would start them anew.
void kill_all(pid_t launcher) {
  kill(launcher, SIGSTOP);
  for (const pid_t process : children_of(launcher)) kill(process, SIGKILL);
  kill(launcher, SIGKILL);
}

// In a group of its own, which the terminal's Ctrl-C does not reach. If this process dies it ends its own. An error is
// that of the process that was to become the launcher.
pid_t start(const std::vector<std::string>& words, const HeldSignals& signals) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t launcher = fork();
  if (launcher != 0) return launcher;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  signals.give_back();
  execv(arguments[0], arguments.data());
  throw ConfigError("[duet] cannot run '" + words[0] + "': " + std::strerror(errno) +
                    "; reinstall torchrun, or put another one into PATH");
}

}  // namespace

int run_launcher(const std::vector<std::string>& words) {
  const HeldSignals signals;
  const pid_t launcher = start(words, signals);
  require<ConfigError>(launcher > 0, "[duet] cannot start '" + words[0] + "': " + std::strerror(errno) +
                                         "; end other processes, or raise the limit on them");
  bool has_passed_on = false;
  int interrupts = 0, status = 0;
  while (waitpid(launcher, &status, WNOHANG) == 0) {
    const int signal = signals.wait();
    if (signal == SIGCHLD) continue;
    if (signal == SIGINT && ++interrupts > 1) {
      kill_all(launcher);
      waitpid(launcher, &status, 0);
      return 128 + SIGINT;
    }
    pass_on(signal, launcher);
    has_passed_on = true;
  }
  if (!WIFEXITED(status)) return 128 + WTERMSIG(status);
  // The processes end with 0 then, as torchrun takes anything else for a failure.
  return has_passed_on && WEXITSTATUS(status) == 0 ? kInterrupted : WEXITSTATUS(status);
}

}  // namespace duet
