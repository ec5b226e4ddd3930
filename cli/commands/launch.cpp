#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <ATen/Parallel.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <dlfcn.h>
#include <unistd.h>
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/launcher.h"

namespace duet {

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr const char* kUsage =
    "duet launch -n N train CONFIG ..., or duet launch -n N TORCHRUN-OPTIONS -- train CONFIG ...";

[[noreturn]] void refuse(const std::string& found) {
  throw ConfigError("[duet] found " + found + ", expected " + kUsage + "; correct the call");
}

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
  try {
    parser.parse(Words(std::make_reverse_iterator(dashes), words.rend()));
  } catch (const CLI::ParseError&) {
    refuse("-n without a number");
  }
  if (dashes == words.end()) {
    call.command = parser.remaining();
    if (!call.command.empty() && call.command[0].starts_with('-'))
      refuse(call.command[0] + " without -- before the command");
  } else {
    call.options = parser.remaining();
    call.command.assign(dashes + 1, words.end());
  }
  if (call.processes.empty()) refuse("no -n");
  if (!is_number_of_processes(call.processes)) refuse("-n " + call.processes);
  if (call.command.empty()) refuse("no command");
  const std::string& name = call.command.front();
  if (name != "train" && name != "eval") refuse("the command '" + name + "'");
  return call;
}

// Unless torchrun is told where to meet, the processes are all on this machine.
bool says_where(const Words& options) {
  return std::any_of(options.begin(), options.end(), [](std::string option) {
    std::replace(option.begin(), option.end(), '_', '-');
    return option.rfind("--rdzv", 0) == 0 || option.rfind("--nnodes", 0) == 0 || option.rfind("--node-rank", 0) == 0 ||
           option.rfind("--master", 0) == 0 || option == "--standalone";
  });
}

bool is_program(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

fs::path in_search_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty() && is_program(fs::path(folder) / name)) return fs::absolute(fs::path(folder) / name);
  }
  return {};
}

// A wheel lies in <environment>/lib/python3.x/site-packages/torch/lib, its programs in <environment>/bin.
fs::path beside_libtorch(const std::string& name) {
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &library) == 0) return {};
  std::error_code ignored;
  fs::path folder = fs::weakly_canonical(library.dli_fname, ignored).parent_path();
  for (int i = 0; i < 6 && folder.has_relative_path(); ++i, folder = folder.parent_path()) {
    if (is_program(folder / "bin" / name)) return folder / "bin" / name;
  }
  return {};
}

// PyTorch's launcher: the one in PATH, else the one beside the LibTorch that this program runs with, if it is that of a
// Python.
std::string find_torchrun() {
  for (const fs::path& found : {in_search_path("torchrun"), beside_libtorch("torchrun")}) {
    if (!found.empty()) return found.string();
  }
  throw ConfigError(
      "[duet] found no torchrun, neither in PATH nor beside LibTorch, expected one to start the processes with; "
      "install "
      "torch for Python, or start them with srun or mpirun");
}

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
  Words all = {find_torchrun(), "--no-python",         "--nproc-per-node",
               call.processes,  "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2,SIGXCPU"};
  if (!says_where(call.options)) all.emplace_back("--standalone");
  all.insert(all.end(), call.options.begin(), call.options.end());
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  all.push_back(failed ? program : self.string());
  all.insert(all.end(), call.command.begin(), call.command.end());
  // Where a rank is lost c10d would show stack traces of its own; the ranks say which one it was.
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  return run_launcher(all);
}

}  // namespace duet
