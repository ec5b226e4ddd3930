#include <vector>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include "graph/cuda/capture_backend.h"

// The capture backend on at::cuda::CUDAGraph. Not run on a GPU yet: see docs/gpu.md.

namespace duet {

namespace {

int64_t reserved_bytes(c10::DeviceIndex device) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  return stats.reserved_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

class CudaBackend : public CaptureBackend {
 public:
  CudaBackend(c10::cuda::CUDAStream stream, at::cuda::MempoolId_t pool) : stream_(stream), pool_(pool) {}

  // Graphs go before the pool they share and before any communicator whose collectives they hold.
  ~CudaBackend() override {
    for (auto& graph : graphs_) graph->reset();
  }

  void begin() override {
    const c10::cuda::CUDAStreamGuard on_stream(stream_);
    stream_.synchronize();
    reserved_before_ = reserved_bytes(stream_.device_index());
    graphs_.push_back(std::make_unique<at::cuda::CUDAGraph>());
    // thread_local: a loader thread that pins memory meanwhile must not spoil the capture.
    graphs_.back()->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  }

  void end() override {
    const c10::cuda::CUDAStreamGuard on_stream(stream_);
    graphs_.back()->capture_end();
    bytes_ += reserved_bytes(stream_.device_index()) - reserved_before_;
  }

  void abort() noexcept override {
    try {
      const c10::cuda::CUDAStreamGuard on_stream(stream_);
      graphs_.back()->capture_end();
    } catch (...) {  // the capture is invalid, which is why it is aborted
    }
    cudaGetLastError();  // a failed capture leaves its error behind for the next call
    graphs_.clear();
  }

  void replay(std::size_t graph) override { graphs_[graph]->replay(); }
  int64_t bytes() const override { return bytes_; }

 private:
  c10::cuda::CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
  std::vector<std::unique_ptr<at::cuda::CUDAGraph>> graphs_;
  int64_t reserved_before_ = 0;
  int64_t bytes_ = 0;
};

class CudaDevice : public CaptureDevice {
 public:
  explicit CudaDevice(c10::Device device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        pool_(at::cuda::graph_pool_handle()) {}

  std::unique_ptr<CaptureBackend> new_backend() override { return std::make_unique<CudaBackend>(stream_, pool_); }

  void run(const std::function<void()>& work) override {
    const c10::cuda::CUDAStream caller = c10::cuda::getCurrentCUDAStream(stream_.device_index());
    before_.record(caller);
    before_.block(stream_);
    {
      const c10::cuda::CUDAStreamGuard on_stream(stream_);
      work();
    }
    after_.record(stream_);
    after_.block(caller);
  }

 private:
  c10::cuda::CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
  at::cuda::CUDAEvent before_, after_;
};

}  // namespace

std::unique_ptr<CaptureDevice> make_cuda_capture_device(c10::Device device) {
  if (!device.has_index()) device.set_index(c10::cuda::current_device());
  return std::make_unique<CudaDevice>(device);
}

}  // namespace duet
