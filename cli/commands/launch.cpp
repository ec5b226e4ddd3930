#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <system_error>
#include <ATen/Parallel.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/commands/commands.h"
#include "hooks/stop_signal_hook.h"

namespace duet {

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr const char* kUsage =
    "duet launch -n N train CONFIG ..., or duet launch -n N TORCHRUN-OPTIONS -- train CONFIG ...";

// What is before the program's own command, and that.
struct Call {
  std::string processes;
  Words options, command;
};

// torchrun also counts them itself, and answers anything else with an assertion of its own.
bool is_number_of_processes(const std::string& text) {
  if (text == "auto" || text == "gpu" || text == "cpu") return true;
  return text.find_first_not_of("0123456789") == std::string::npos && text.find_first_not_of('0') != std::string::npos;
}

Call read_call(const Words& words) {
  Call call;
  const auto dashes = std::find(words.begin(), words.end(), "--");
  CLI::App parser;
  parser.set_help_flag();
  parser.add_option("-n,--nproc-per-node,--nproc_per_node", call.processes)->take_last();
  parser.allow_extras();
  parser.prefix_command(dashes == words.end());  // the first word that is no option begins the command
  const auto without_number = caught([&] { parser.parse(Words(std::make_reverse_iterator(dashes), words.rend())); });
  (dashes == words.end() ? call.command : call.options) = parser.remaining();
  if (dashes != words.end()) call.command.assign(dashes + 1, words.end());
  const std::string command = call.command.empty() ? "" : call.command.front();
  if (!without_number && is_number_of_processes(call.processes) && (command == "train" || command == "eval"))
    return call;
  throw ConfigError("[duet] found -n '" + call.processes + "' and the command '" + command + "', expected " + kUsage +
                    "; correct the call");
}

// Unless torchrun is told where to meet, the processes are all on this machine.
bool says_where(const Words& options) {
  return std::any_of(options.begin(), options.end(), [](std::string option) {
    std::replace(option.begin(), option.end(), '_', '-');
    const auto begins = [&](const char* start) { return option.starts_with(start); };
    return begins("--rdzv") || begins("--nnodes") || begins("--node-rank") || begins("--master") ||
           option == "--standalone";
  });
}

// A wheel lies in <environment>/lib/python3.x/site-packages/torch/lib, its programs in <environment>/bin. Empty: this
// LibTorch is not that of a Python.
std::string torchrun_of_wheel() {
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &library) == 0) return "";
  std::error_code ignored;
  fs::path folder = fs::weakly_canonical(library.dli_fname, ignored).parent_path();
  for (int i = 0; i < 6 && folder.has_relative_path(); ++i, folder = folder.parent_path()) {
    if (::access((folder / "bin/torchrun").c_str(), X_OK) == 0) return folder / "bin/torchrun";
  }
  return "";
}

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
  return end == std::string::npos || end + 4 >= text.size() ? 0 : std::atoi(text.c_str() + end + 4);
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

// torchrun with its arguments, in a process that is waited for. Signals to this process go to those that torchrun has
// started, as it would end them half a minute later, saved or not: they save and end.
class Torchrun {
 public:
  // In a group of its own, which the terminal's Ctrl-C does not reach. If this process dies it ends its own. Throws
  // ConfigError if it cannot be started; one that is neither in PATH nor beside LibTorch throws in the process that was
  // to become torchrun.
  explicit Torchrun(const Words& words) : process_(fork()) {
    require<ConfigError>(process_ >= 0, std::string("[duet] cannot start torchrun: ") + std::strerror(errno) +
                                            "; end other processes, or raise the limit on them");
    if (process_ > 0) return;
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signals_.give_back();
    execvp("torchrun", arguments.data());
    execv(torchrun_of_wheel().c_str(), arguments.data());
    throw ConfigError(
        "[duet] cannot run torchrun from PATH or beside LibTorch, expected it to start the processes; install torch "
        "for Python, or start them with srun or mpirun");
  }

  // Its exit code, or 75 after a signal that all have obeyed. A second SIGINT kills all of them.
  int wait() {
    bool has_passed_on = false;
    int interrupts = 0, status = 0;
    while (waitpid(process_, &status, WNOHANG) == 0) {
      const int signal = signals_.wait();
      if (signal == SIGCHLD) continue;
      if (signal == SIGINT && ++interrupts > 1) {
        kill_all();
        waitpid(process_, &status, 0);
        return 128 + SIGINT;
      }
      pass_on(signal);
      has_passed_on = true;
    }
    if (!WIFEXITED(status)) return 128 + WTERMSIG(status);
    // The processes end with 0 then, as torchrun takes anything else for a failure.
    return has_passed_on && WEXITSTATUS(status) == 0 ? kInterrupted : WEXITSTATUS(status);
  }

 private:
  // What is still being started is ended.
  void pass_on(int signal) const {
    const std::vector<pid_t> processes = children_of(process_);
    for (const pid_t process : processes) kill(process, signal);
    if (processes.empty()) kill(process_, signal);
  }

  // torchrun stands still meanwhile: it would start them anew.
  void kill_all() const {
    kill(process_, SIGSTOP);
    for (const pid_t process : children_of(process_)) kill(process, SIGKILL);
    kill(process_, SIGKILL);
  }

  HeldSignals signals_;  // before there is a process to hear of
  pid_t process_;
};

}  // namespace

int launch_command(const std::vector<std::string>& words, const std::string& program) {
  if (words.size() == 1 && (words[0] == "--help" || words[0] == "-h")) {
    std::cout << "usage: " << kUsage
              << "\n\nStarts N processes of this program that train together, with torchrun. Without TORCHRUN-OPTIONS\n"
                 "about a rendezvous, nodes or a master they are all on this machine; torchrun --help lists them\n"
                 "(--max-restarts 3).\n";
    return 0;
  }
  const Call call = read_call(words);
  // SLURM sends its signals to torchrun too. SIGUSR1 would end it without a word to the processes: it passes that on.
  Words all = {"torchrun",     "--no-python",         "--nproc-per-node",
               call.processes, "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2,SIGXCPU"};
  if (!says_where(call.options)) all.emplace_back("--standalone");
  all.insert(all.end(), call.options.begin(), call.options.end());
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  all.push_back(failed ? program : self.string());
  all.insert(all.end(), call.command.begin(), call.command.end());
  // Where a rank is lost c10d would show stack traces of its own; the ranks say which one it was.
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  return Torchrun(all).wait();
}

}  // namespace duet
