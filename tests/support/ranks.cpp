#include "tests/support/ranks.h"
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <stdexcept>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <nss.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "io/safetensors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/trainer_runs.h"

namespace duet::testing {

namespace {

using Clock = std::chrono::steady_clock;

using ProcessBody = std::function<NamedTensors(const Launch&)>;

// TCPStore asks for the name of every address that connects, and a name server that does not answer would stop it for
// seconds.
void ask_no_name_server() { __nss_configure_lookup("hosts", "files"); }

[[noreturn]] void run_process(const Launch& launch, const ProcessBody& body, const std::string& file) {
  alarm(300);
  ask_no_name_server();
  at::set_num_threads(1);
  std::string error;
  int code = 0;
  try {
    NamedTensors result;
    for (const auto& [name, tensor] : body(launch)) result.emplace_back(name, tensor.detach().clone().contiguous());
    write_safetensors(file + ".safetensors", result);
  } catch (const Error& failure) {
    error = failure.what();
    code = failure.exit_code();
  } catch (const std::exception& failure) {
    error = failure.what();
    code = 1;
  }
  if (!error.empty()) std::ofstream(file + ".error") << code << " " << error;
  _exit(0);
}

// `port` if it is free, any port for 0; 0 if it is taken.
int bound_port(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(fd);
  return bound ? ntohs(address.sin_port) : 0;
}

}  // namespace

// One that nobody gets who asks the system for any: it is a while until it is taken.
int free_port() {
  constexpr int kFirst = 10000;
  int end = 0;  // of the ports that the system does not give
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> end;
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    const int wish = end > kFirst ? std::uniform_int_distribution<int>(kFirst, end - 1)(random) : 0;
    if (const int port = bound_port(wish); port > 0) return port;
  }
  throw std::runtime_error("no free port");
}

const at::Tensor& RankResult::at(const std::string& name) const {
  for (const auto& [known, tensor] : tensors) {
    if (known == name) return tensor;
  }
  throw std::runtime_error("no tensor '" + name + "'" + (error.empty() ? "" : ": " + error));
}

namespace {

RankResult read_result(int status, const std::string& file) {
  RankResult result;
  if (WIFSIGNALED(status)) {
    result.exit_code = -WTERMSIG(status);
    result.error = "killed by signal " + std::to_string(WTERMSIG(status));
  } else if (const std::string text = read_bytes(file + ".error"); !text.empty()) {
    std::istringstream in(text);
    in >> result.exit_code;
    result.error = text.substr(text.find(' ') + 1);
  } else if (std::filesystem::exists(file + ".safetensors")) {
    result.tensors = read_safetensors(file + ".safetensors");
  } else {
    result.error = "the process ended without a result";
    result.exit_code = 1;
  }
  return result;
}

}  // namespace

std::vector<RankResult> run_processes(int64_t count, const ProcessBody& body) {
  const TempDir folder;
  Launch launch;
  launch.world_size = launch.local_world_size = count;
  launch.master_port = free_port();
  launch.from = "a test";
  const auto start = Clock::now();
  std::vector<pid_t> processes;
  for (int64_t rank = 0; rank < count; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("cannot fork");
    launch.rank = launch.local_rank = rank;
    if (child == 0) run_process(launch, body, folder / std::to_string(rank));
    processes.push_back(child);
  }
  std::vector<RankResult> results(processes.size());
  std::vector<double> stopped(processes.size(), -1);
  std::vector<std::size_t> sleeping;
  for (std::size_t left = processes.size(); left > 0;) {
    int status = 0;
    const pid_t changed = waitpid(-1, &status, WUNTRACED);
    const auto rank =
        static_cast<std::size_t>(std::find(processes.begin(), processes.end(), changed) - processes.begin());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (WIFSTOPPED(status)) {
      if (stopped.at(rank) < 0) stopped[rank] = seconds;
      sleeping.push_back(rank);
    } else {
      results.at(rank) = read_result(status, folder / std::to_string(rank));
      results[rank].seconds = seconds;
      results[rank].stopped = stopped[rank];
      std::erase(sleeping, rank);
      --left;
    }
    if (left > sleeping.size()) continue;
    for (const std::size_t sleeper : sleeping) kill(processes[sleeper], SIGCONT);
    sleeping.clear();
  }
  return results;
}

std::vector<RankResult> run_ranks(int64_t count, const RankBody& body, const ConnectOptions& options) {
  return run_processes(count, [&](const Launch& launch) {
    const std::shared_ptr<Communicator> communicator = connect(launch, at::kCPU, options);
    try {
      return body(communicator);
    } catch (const std::exception& failure) {
      communicator->fail(failure.what());
      throw;
    }
  });
}

void expect_no_error(const std::vector<RankResult>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) EXPECT_EQ(results[rank].error, "") << "rank " << rank;
}

void expect_rank_error(const RankResult& result, int exit_code, const std::string& text) {
  EXPECT_EQ(result.exit_code, exit_code) << result.error;
  EXPECT_NE(result.error.find(text), std::string::npos) << "'" << text << "' is not in: " << result.error;
  EXPECT_LT(result.seconds, kAtOnce) << "it was a timeout";
}

void expect_error_on_all(const std::vector<RankResult>& results, int exit_code, const std::string& text) {
  for (const RankResult& result : results) expect_rank_error(result, exit_code, text);
}

void expect_same_on_all(const std::vector<RankResult>& results) {
  expect_no_error(results);
  for (const RankResult& result : results) {
    ASSERT_EQ(result.tensors.size(), results.front().tensors.size());
    for (const auto& [name, tensor] : result.tensors) EXPECT_TRUE(same_bits(tensor, results.front().at(name))) << name;
  }
}

double largest_difference(const RankResult& a, const RankResult& b, const std::string& but) {
  double largest = 0;
  for (const auto& [name, tensor] : a.tensors) {
    if (name == but) continue;
    largest = std::max(largest, (tensor.to(at::kDouble) - b.at(name).to(at::kDouble)).abs().max().item<double>());
  }
  return largest;
}

}  // namespace duet::testing
