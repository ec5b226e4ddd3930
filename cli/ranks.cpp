#include "cli/ranks.h"
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <iostream>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/report.h"
#include "cli/run_identity.h"
#include "distributed/detail/connect.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

namespace {

std::string& prefix() {
  static std::string text;
  return text;
}

class IntoOurLog : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    log_warning("[LibTorch] " + warning.msg().substr(0, warning.msg().find('\n')));
  }
};

// LibTorch shows errors of its own only: c10d warns of every lost connection with a stack trace, while an error of ours
// names the lost rank. What it warns of on this thread goes into our log instead. TORCH_CPP_LOG_LEVEL decides where it
// is set, as in Python.
void quiet_libtorch() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) {
    c10::initLogging();  // a C++ program would not look at it
    return;
  }
  constexpr int kErrors = 2;  // glog's number
  FLAGS_caffe2_log_level = kErrors;
  static auto* const handler = new IntoOurLog();  // outlives the threads that may warn
  c10::WarningUtils::set_warning_handler(handler);
}

// What another rank says while it is set up, rank 0 says too; what makes it fail is an error.
void log_as_rank(int64_t rank) {
  if (rank == 0) return;
  prefix() = c10::str("rank ", rank, ": ");
  set_log_prefix(prefix());
  set_log_level(LogLevel::kError);
}

// The others may be started by hand, much later; the user shall not look at a process that says nothing.
void tell_others(const Launch& launch, const std::exception_ptr& error) {
  const ConnectOptions options;
  const auto told = std::async(std::launch::async, [&] { fail_to_connect(launch, error, options); });
  if (told.wait_for(std::chrono::seconds(2)) == std::future_status::ready) return;
  std::cerr << prefix() << escape_control_chars(failure_of(error).text)
            << "\n(waiting for the other ranks to tell them, at most " << options.start_timeout << " s)" << std::endl;
}

// The config of this rank. Where there is none the others hear of it before the error ends this rank too.
RunConfig load_here(const std::function<RunConfig()>& load, const Launch& launch) {
  try {
    RunConfig config = load();
    config.launch = launch;
    config.trainer.device = device_of_rank(config.trainer.device, launch.local_rank);
    parse_device(config.trainer.device);
    return config;
  } catch (...) {
    tell_others(launch, std::current_exception());
    throw;
  }
}

// Without what may differ between machines.
std::string shared_config(const RunConfig& config) {
  FlatConfig values = flat_config(config.root, Variables::kFilledIn);
  std::erase_if(values, [](const auto& value) { return value.first == "device" || is_of_machine(value.first); });
  return nlohmann::json(values).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void check_same_config(Communicator& ranks, const RunConfig& config) {
  std::string own;
  run_on_all_ranks(ranks, [&] { own = shared_config(config); });
  const std::vector<std::string> all = ranks.all_gather(own);
  const auto values_of = [&](std::size_t rank) { return nlohmann::json::parse(all[rank]).get<FlatConfig>(); };
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const ValueDifference found = differences(values_of(0), values_of(rank)).front();
    const auto text = [&](const std::string& value) { return value.empty() ? "nothing" : found.path + ": " + value; };
    throw ConfigError(c10::str("[Launch] found different configs: '", text(found.first), "' on rank 0 and '",
                               text(found.second), "' on rank ", rank,
                               ", expected one config; start all ranks with the same file and overrides"));
  }
}

int run_together(RunConfig& config, Communicator& ranks, const std::function<int(RunConfig&)>& run) {
  try {
    check_same_config(ranks, config);
    return run(config);
  } catch (...) {
    ranks.fail(failure_of(std::current_exception()).text);
    throw;
  }
}

}  // namespace

int run_on_ranks(const LaunchFlags& flags, const std::function<RunConfig()>& load,
                 const std::function<int(RunConfig&)>& run) {
  const Launch launch = read_launch(flags);
  if (launch.world_size == 1) {
    RunConfig config = load();
    config.launch = launch;
    return run(config);
  }
  quiet_libtorch();
  log_as_rank(launch.rank);
  log_info(launch.text());
  RunConfig config = load_here(load, launch);
  const auto ranks = connect(launch, parse_device(config.trainer.device), config.connect);
  config.trainer.distributed.communicator = ranks;
  return run_together(config, *ranks, run);
}

void refuse_ranks(const std::string& command) {
  const Launch launch = read_launch();
  if (launch.world_size == 1) return;
  throw ConfigError(c10::str("[Launch] duet ", command, " runs in one process, found ", launch.text(),
                             "; call it without the launcher, or unset the launch variables"));
}

void show_warnings_of_all_ranks() {
  if (!prefix().empty()) set_log_level(LogLevel::kWarning);
}

const std::string& rank_prefix() { return prefix(); }

std::string from_main(Communicator& ranks, const std::function<std::string()>& make) {
  std::string text;
  run_on_main(ranks, [&] { text = make(); });
  return ranks.broadcast(text);
}

void check_same_option(Communicator& ranks, const std::string& name, const std::string& value) {
  const std::string own = value.empty() ? "no " + name : name + " " + value;
  check_same_on_all_ranks<ConfigError>(ranks, own, [](const RankDifference& found) {
    return c10::str("[Launch] found '", found.on_first, "' on rank 0 and '", found.there, "' on rank ", found.rank,
                    ", expected one call; start all ranks with the same words");
  });
}

}  // namespace duet
