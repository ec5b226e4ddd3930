#define USE_C10D_NCCL  // without it ProcessGroupNCCL.hpp is empty
#include "distributed/detail/nccl_backend.h"
#include <atomic>
#include <exception>
#include <ATen/cuda/CUDAContextLight.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include "base/detail/text.h"
#include "base/log.h"

namespace duet {

namespace {

// A group's destructor warns unless it was shut down before, and frees communicators that others may still use.
class OwnNcclBackend : public c10d::ProcessGroupNCCL {
 public:
  using c10d::ProcessGroupNCCL::ProcessGroupNCCL;

  // While an error is on its way, others may never come to the end of what they share with this rank.
  ~OwnNcclBackend() override {
    if (aborted_) return;
    try {
      std::uncaught_exceptions() > 0 ? ProcessGroupNCCL::abort() : ProcessGroupNCCL::shutdown();
    } catch (const std::exception& error) {
      log_warning("[Communicator] NCCL was not shut down (" + first_line(error) + ")");
    }
  }

  void abort() override {
    aborted_ = true;
    ProcessGroupNCCL::abort();
  }

 private:
  std::atomic<bool> aborted_ = false;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, at::Device device,
                                                    std::chrono::milliseconds timeout) {
  set_nccl_environment();
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend = c10::make_intrusive<OwnNcclBackend>(store, rank, world_size, options);
  backend->eagerConnectSingleDevice(device);
  return backend;
}

std::string gpu_identity(c10::Device device) {
  if (!device.is_cuda()) return {};
  const cudaDeviceProp* properties = nullptr;
  try {
    properties = at::cuda::getDeviceProperties(device.index());
  } catch (const c10::Error&) {
    return {};
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  const auto& bytes = properties->uuid.bytes;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(bytes[i]);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

}  // namespace duet
