#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include "base/detail/step_lock.h"
#include "base/detail/torch_versions.h"
#include "base/error.h"
#include "graph/cuda/capture_backend.h"

// The capture backend on at::cuda::CUDAGraph.

namespace duet {

namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;
namespace allocator = c10::cuda::CUDACachingAllocator;

int64_t reserved_bytes(c10::DeviceIndex device) {
  const auto stats = allocator::getDeviceStats(device);
  return stats.reserved_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

// For what cannot be done any more if it fails: the process or the device ends, or there was nothing to undo.
template <class Work>
void quietly(Work work) noexcept {
  try {
    work();
  } catch (const std::exception&) {
  }
}

// A stream that nobody else has: what another thread launched on it would end up in a graph. It is used again, not
// destroyed: memory that was used on it refers to it.
class OwnStream {
 public:
  explicit OwnStream(c10::DeviceIndex device) : stream_(take(device)) {}
  ~OwnStream() {
    const std::lock_guard lock(mutex());
    idle().push_back(stream_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  CUDAStream get() const { return stream_; }

 private:
  static CUDAStream take(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex());
    const auto found = std::find_if(idle().begin(), idle().end(),
                                    [device](const CUDAStream& stream) { return stream.device_index() == device; });
    if (found != idle().end()) {
      const CUDAStream stream = *found;
      idle().erase(found);
      return stream;
    }
    const c10::cuda::CUDAGuard on_device(device);
    cudaStream_t made = nullptr;
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, /*priority=*/0));
    return c10::cuda::getStreamFromExternal(made, device);
  }
  // Never destroyed, since trainers may live until the process ends.
  static std::mutex& mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::vector<CUDAStream>& idle() {
    static auto* streams = new std::vector<CUDAStream>;
    return *streams;
  }

  CUDAStream stream_;
};

// The memory pools of a trainer's graphs, one of the device and one of pinned memory. They are there before its first
// graph and after its last one: LibTorch refuses to capture into a pool whose last graph has gone.
class Pool {
 public:
  explicit Pool(c10::DeviceIndex device) : device_(device) { hold(); }
  ~Pool() {
    if (is_native_) release();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  at::cuda::MempoolId_t id() const { return id_; }
  int uses() const { return is_native_ ? allocator::getPoolUseCount(device_, id_) : 0; }
  // As it was with so many uses, before a capture that did not end.
  void leave(int uses_before) {
    quietly([this] { allocator::endAllocateToPool(device_, id_); });
    quietly([this] { host().end_allocate_to_pool(id_); });
    if (is_native_ && uses() > uses_before) release();
  }
  // Another one takes its place once it has no graph: eager steps may use its memory then.
  void release_if_empty() noexcept {
    quietly([this] {
      if (!is_native_ || uses() != 1) return;
      release();
      hold();
    });
  }

 private:
  static at::HostAllocator& host() { return *at::getHostAllocator(at::kCUDA); }
  void hold() {
    id_ = at::cuda::graph_pool_handle();
    if (!is_native_) return;
    allocator::createOrIncrefPool(device_, id_);
    host().begin_allocate_to_pool(id_, [](c10::Stream) { return false; });
    host().end_allocate_to_pool(id_);
  }
  void release() {
    quietly([this] { allocator::releasePool(device_, id_); });
    quietly([this] { host().release_pool(id_); });
  }

  c10::DeviceIndex device_;
  at::cuda::MempoolId_t id_{};
  bool is_native_ = allocator::get()->name() == "native";  // cudaMallocAsync has pools of its own
};

// Whether it believes that a capture goes on although none does: then every draw from it fails.
bool is_stuck(const at::Generator& generator) {
  auto* impl = static_cast<at::CUDAGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  const std::lock_guard lock(impl->mutex_);
  try {
    impl->philox_cuda_state(/*increment=*/0);
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

// Graphs read seed and offset of the device's generator from one place in its memory, which each replay writes to. So
// those of several trainers, whose streams do not wait for each other, take turns.
class ReplayTurn {
 public:
  ReplayTurn(at::Generator generator, const CUDAStream& stream)
      : generator_(std::move(generator)), lock_(generator_.mutex()) {
    Latest& latest = latest_on(stream.device_index());
    if (latest.stream && *latest.stream != stream) {
      latest.event.record(*latest.stream);
      latest.event.block(stream);
    }
    latest.stream = stream;
  }

 private:
  struct Latest {
    std::optional<CUDAStream> stream{};
    at::cuda::CUDAEvent event{};
  };
  // Never destroyed, like the streams.
  static Latest& latest_on(c10::DeviceIndex device) {
    static auto* const mutex = new std::mutex;
    static auto* const latest = new std::map<c10::DeviceIndex, Latest>;
    const std::lock_guard lock(*mutex);
    return (*latest)[device];
  }

  at::Generator generator_;
  std::unique_lock<std::mutex> lock_;  // for the offset, too, which the host counts on
};

// What the backends of one device share.
struct Shared {
  explicit Shared(c10::DeviceIndex device) : own_stream(device), stream(own_stream.get()), pool(device) {}

  OwnStream own_stream;
  CUDAStream stream;
  Pool pool;
  bool lost_generator = false;  // the graphs draw from a state that the generator no longer has
};

class CudaBackend : public CaptureBackend {
 public:
  explicit CudaBackend(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  // Graphs go before the pool they share and before any communicator whose collectives they hold.
  ~CudaBackend() override {
    for (auto& graph : graphs_) graph->reset();
    shared_->pool.release_if_empty();
  }

  void begin(const std::vector<at::Generator>& generators) override {
    require<GraphError>(!shared_->lost_generator, "an earlier capture failed in a way that cannot be undone");
    alone_.emplace();
    const CUDAStreamGuard on_stream(stream());
    stream().synchronize();
    allocator::emptyCache();  // what the eager steps before it left is of no use to a pool of its own
    reserved_before_ = reserved_bytes(stream().device_index());
    graphs_.push_back(std::make_unique<at::cuda::CUDAGraph>());
    generators_ = {at::globalContext().defaultGenerator(stream().device())};
    for (const at::Generator& generator : generators) {
      if (generator.device() != stream().device()) continue;
      register_generator(*graphs_.back(), generator);
      generators_.push_back(generator);
    }
    uses_before_ = shared_->pool.uses();
    is_open_ = true;
    // thread_local: a loader thread that pins memory meanwhile must not spoil the capture.
    graphs_.back()->capture_begin(shared_->pool.id(), cudaStreamCaptureModeThreadLocal);
  }

  void end() override {
    const CUDAStreamGuard on_stream(stream());
    graphs_.back()->capture_end();
    is_open_ = false;
    bytes_ += reserved_bytes(stream().device_index()) - reserved_before_;
    alone_.reset();
  }

  // Some calls that a capture forbids spoil it without an error of their own.
  void run_op(const c10::OperatorHandle& /*op*/, torch::jit::Stack& /*stack*/,
              const std::function<void()>& run) override {
    run();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(stream(), &status));
    require<GraphError>(status == cudaStreamCaptureStatusActive, "it did what a capture forbids");
  }

  void abort() noexcept override {
    quietly([this] {
      const CUDAStreamGuard on_stream(stream());
      if (is_open_) leave_capture();
      for (const at::Generator& generator : generators_) free_generator(generator);
    });
    is_open_ = false;
    cudaGetLastError();  // a failed capture leaves its error behind for the next call
    graphs_.clear();
    shared_->pool.release_if_empty();
    bytes_ = 0;
    alone_.reset();
  }

  bool free_memory() override {
    const int64_t before = reserved_bytes(stream().device_index());
    allocator::emptyCache();
    return reserved_bytes(stream().device_index()) < before;
  }

  void replay(std::size_t graph) override {
    require<GraphError>(!shared_->lost_generator,
                        "[GraphTrainer] a capture failed in a way that cannot be undone (the device's random generator "
                        "had to be replaced); resume from a checkpoint, with graph.fallback eager");
    const ReplayTurn turn(generators_.front(), stream());
    graphs_[graph]->replay();
  }
  int64_t bytes() const override { return bytes_; }

 private:
  CUDAStream stream() const { return shared_->stream; }

  // capture_end() of a spoilt capture throws before it has told allocators and generators that it is over. So the
  // spoilt one is ended by hand, and the graph is given the end of another one, which is empty.
  void leave_capture() {
    end_on_device();
    if (has_ended(*graphs_.back())) return;
    quietly([this] {
      C10_CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
      const c10::WarningUtils::WarningHandlerGuard no_warning(&silent_);  // that the graph is empty
      graphs_.back()->capture_end();
    });
    if (has_ended(*graphs_.back())) return;
    end_on_device();
    graphs_.back()->reset();  // from LibTorch 2.15 on it gives back its use of the pool
    shared_->pool.leave(uses_before_);
  }

  static bool has_ended(at::cuda::CUDAGraph& graph) {
    try {
      graph.pool();
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }

  void end_on_device() {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream(), &status) != cudaSuccess || status == cudaStreamCaptureStatusNone) return;
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
  }

  // The last resort: what was captured before draws from the state that it loses.
  void free_generator(at::Generator generator) {
    if (!is_stuck(generator)) return;
    const at::Generator fresh = generator.clone();
    const std::lock_guard lock(generator.mutex());
    generator.graphsafe_set_state(fresh);
    shared_->lost_generator = true;
  }

  struct SilentHandler : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };

  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<at::cuda::CUDAGraph>> graphs_;
  std::vector<at::Generator> generators_;
  std::optional<StepLock::Alone> alone_;
  SilentHandler silent_;
  bool is_open_ = false;  // the last graph's capture has begun
  int uses_before_ = 0;   // of the pool
  int64_t reserved_before_ = 0;
  int64_t bytes_ = 0;
};

class CudaDevice : public CaptureDevice {
 public:
  explicit CudaDevice(c10::Device device) : shared_(std::make_shared<Shared>(device.index())) {}

  std::unique_ptr<CaptureBackend> new_backend() override { return std::make_unique<CudaBackend>(shared_); }

  void on_stream(const std::function<void()>& work) override {
    const CUDAStream caller = c10::cuda::getCurrentCUDAStream(shared_->stream.device_index());
    if (caller == shared_->stream) return work();
    before_.record(caller);
    before_.block(shared_->stream);
    try {
      const CUDAStreamGuard guard(shared_->stream);
      work();
    } catch (...) {
      go_back_to(caller);
      throw;
    }
    after_.record(shared_->stream);
    after_.block(caller);
  }

  void run(const std::function<void()>& step) override {
    const StepLock::Step lock;
    on_stream(step);
  }

 private:
  // After an error, which is the one to tell of.
  void go_back_to(const CUDAStream& caller) noexcept {
    quietly([&] {
      after_.record(shared_->stream);
      after_.block(caller);
    });
  }

  std::shared_ptr<Shared> shared_;
  at::cuda::CUDAEvent before_, after_;
};

}  // namespace

std::unique_ptr<CaptureDevice> make_cuda_capture_device(c10::Device device) {
  if (!device.has_index()) device.set_index(c10::cuda::current_device());
  return std::make_unique<CudaDevice>(device);
}

}  // namespace duet
