#include "distributed/init_distributed.h"
#include <mutex>
#include <ATen/Context.h>
#include <c10/util/StringUtil.h>
#include "base/device.h"
#include "base/error.h"
#include "distributed/detail/connect.h"
#include "distributed/distributed_options.h"

namespace duet {

namespace {

std::mutex current_mutex;
std::weak_ptr<Communicator> current;

std::shared_ptr<Communicator> made_current(std::shared_ptr<Communicator> ranks) {
  const std::lock_guard lock(current_mutex);
  current = ranks;
  return ranks;
}

}  // namespace

std::shared_ptr<Communicator> current_ranks() {
  const std::lock_guard lock(current_mutex);
  const std::shared_ptr<Communicator> ranks = current.lock();
  return ranks ? ranks : one_process();
}

std::string device_of_rank(const std::string& wish, int64_t local_rank, int64_t gpus) {
  const bool is_open = wish == "cuda" || (wish == "auto" && gpus > 0);
  if (!is_open) return wish;
  if (gpus == 1) return "cuda:0";
  if (local_rank < gpus) return c10::str("cuda:", local_rank);
  throw ConfigError(c10::str("[Launch] found local rank ", local_rank, " and ", gpus,
                             " GPUs, expected one for each process of this machine; start fewer here, or train on the "
                             "CPU with device=cpu"));
}

std::string device_of_rank(const std::string& wish, int64_t local_rank) {
  return device_of_rank(wish, local_rank, at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0);
}

std::shared_ptr<Communicator> init_distributed(const InitOptions& options) {
  const Launch launch = read_launch(options.launch);
  at::Device device = at::kCPU;
  try {
    device = parse_device(launch.world_size == 1 ? options.device : device_of_rank(options.device, launch.local_rank));
    options.connect.validate();
  } catch (const Error&) {
    fail_to_connect(launch, std::current_exception());
    throw;
  }
  return made_current(connect(launch, device, options.connect));
}

std::shared_ptr<Communicator> init_distributed(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                                               const ConnectOptions& options) {
  return made_current(connect(group, device, options));
}

}  // namespace duet
