#include "base/device.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/StringUtil.h>
#include <malloc.h>
#include <sys/resource.h>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

namespace {

int cuda_count() { return at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0; }

std::string present_devices() {
  std::string devices = "cpu";
  for (int i = 0; i < cuda_count(); ++i) devices += ", cuda:" + std::to_string(i);
  return devices;
}

[[noreturn]] void refuse(const std::string& text) {
  throw ConfigError(c10::str("[Device] found device '", text, "', expected auto, cpu, cuda or cuda:<index>; this ",
                             "machine has ", present_devices(), "; correct 'device'"));
}

c10::Device cuda_device(int index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

}  // namespace

bool cuda_available() { return cuda_count() > 0; }

// hasCUDA() would ask for a device; the runtime is there if LibTorch's CUDA library is.
bool built_with_cuda() { return at::globalContext().hasCUDART(); }

c10::Device parse_device(const std::string& text) {
  if (text == "cpu") return c10::DeviceType::CPU;
  if (text == "auto") return cuda_available() ? cuda_device(0) : c10::Device(c10::DeviceType::CPU);
  constexpr std::string_view kPrefix = "cuda:";
  int index = 0;
  if (text != "cuda") {
    if (text.compare(0, kPrefix.size(), kPrefix) != 0 || text.size() == kPrefix.size()) refuse(text);
    index = parse_number<int>(std::string_view(text).substr(kPrefix.size())).value_or(-1);
    if (index < 0) refuse(text);
  }
  if (index >= cuda_count()) refuse(text);
  return cuda_device(index);
}

namespace {

// The generators of this machine, by the names of their states.
std::vector<std::pair<std::string, at::Generator>> generators() {
  std::vector<std::pair<std::string, at::Generator>> all;
  all.emplace_back("cpu", at::globalContext().defaultGenerator(at::kCPU));
  for (int i = 0; i < cuda_count(); ++i) {
    all.emplace_back("cuda." + std::to_string(i), at::globalContext().defaultGenerator(cuda_device(i)));
  }
  return all;
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

bool has_seed_of(at::Generator& generator, const at::Tensor& state) {
  return std::memcmp(state_of(generator).const_data_ptr(), state.const_data_ptr(), sizeof(uint64_t)) == 0;
}

// set_state() of a GPU's generator has cuDNN's RNNs draw the state of their dropout anew in the next step, by a value
// read to the host, while captured steps know the old one. Where only the position changes, as in a comparison that
// puts it back, it is set through a second handle, and they keep theirs.
void set_state_of(at::Generator& generator, const at::Tensor& state) {
  const bool moves = !generator.device().is_cpu() && has_seed_of(generator, state);
  at::Generator handle = moves ? generator.graphsafe_get_state() : generator;
  const std::lock_guard<std::mutex> lock(generator.mutex());
  handle.set_state(state);
}

}  // namespace

void seed_all(uint64_t seed) { at::manual_seed(seed); }

uint64_t default_seed() { return at::globalContext().defaultGenerator(at::kCPU).current_seed(); }

uint64_t rank_seed(uint64_t seed, int64_t rank) { return seed + static_cast<uint64_t>(rank) * 0x9E3779B97F4A7C15ULL; }

void use_deterministic_kernels() {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);  // which finds errors, and decides no bit otherwise
  context.setBenchmarkCuDNN(false);
}

StateDict random_state() {
  StateDict state;
  for (auto& [name, generator] : generators()) state.set(name, state_of(generator));
  return state;
}

void set_random_state(const StateDict& state) {
  auto all = generators();
  // A checkpoint of a machine with fewer devices says nothing about the others: those keep their state.
  std::erase_if(all, [&](const auto& entry) { return entry.first != "cpu" && !state.has(entry.first); });
  for (auto& [name, generator] : all) {  // all checks before the first change
    const at::Tensor& wanted = state.tensor(name);
    const at::Tensor present = state_of(generator);
    if (wanted.scalar_type() != present.scalar_type() || wanted.sizes() != present.sizes()) {
      throw CheckpointError(c10::str("[Random] state of generator '", name, "': found ", wanted.scalar_type(), " ",
                                     wanted.sizes(), ", expected ", present.scalar_type(), " ", present.sizes(),
                                     "; resume with the LibTorch version that wrote the checkpoint"));
    }
  }
  for (auto& [name, generator] : all) {
    try {
      set_state_of(generator, state.tensor(name).cpu().contiguous());
    } catch (const c10::Error& error) {
      throw CheckpointError(c10::str("[Random] state of generator '", name, "': found that LibTorch refuses it (",
                                     error.what_without_backtrace(), "), expected one of this version; the ",
                                     "checkpoint is damaged or was written by another version"));
    }
  }
}

namespace {

HostGenerators& host_generators() {
  static HostGenerators generators;
  return generators;
}

}  // namespace

void set_host_generators(HostGenerators generators) { host_generators() = std::move(generators); }

StateDict all_random_state() {
  StateDict state = random_state();
  if (host_generators().state) state.set("host", host_generators().state());
  return state;
}

void set_all_random_state(const StateDict& state) {
  set_random_state(state);
  if (host_generators().set_state && state.has("host")) host_generators().set_state(state.tensor("host"));
}

CpuSeedGuard::CpuSeedGuard(uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  before_ = state_of(generator);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

CpuSeedGuard::~CpuSeedGuard() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  set_state_of(generator, before_);
}

namespace {

c10::DeviceAllocator* allocator_of(at::Device device) {
  return device.is_cpu() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

at::DeviceIndex index_of(at::Device device) { return device.has_index() ? device.index() : at::DeviceIndex{0}; }

// The number behind `key`, with which a line of one of Linux's files begins; nothing where there is none.
std::optional<int64_t> number_in(const std::string& file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    int64_t number = 0;
    if (line.starts_with(key) && std::istringstream(line.substr(key.size())) >> number) return number;
  }
  return std::nullopt;
}

// What getrusage() counts includes what the program used that started this one by exec().
int64_t resident_peak() {
  if (const auto peak = number_in("/proc/self/status", "VmHWM:")) return *peak * 1024;
  rusage usage{};  // some sandboxes have no such line
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

}  // namespace

int64_t peak_bytes(at::Device device) {
  if (auto* allocator = allocator_of(device)) {
    if (!allocator->initialized()) return 0;
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return allocator->getDeviceStats(index_of(device)).allocated_bytes[kAll].peak;
  }
  return resident_peak();
}

void reset_peak_bytes(at::Device device) {
  if (auto* allocator = allocator_of(device)) {
    if (allocator->initialized()) allocator->resetPeakStats(index_of(device));
    return;
  }
  malloc_trim(0);
  // Linux: "5" sets the peak back to what is resident now. Where that is not allowed the peak stays that of the
  // process.
  std::ofstream("/proc/self/clear_refs") << "5";
}

int64_t free_bytes(at::Device device) {
  if (auto* allocator = allocator_of(device))
    return static_cast<int64_t>(allocator->getMemoryInfo(index_of(device)).first);
  int64_t bytes =
      number_in("/proc/meminfo", "MemAvailable:").value_or(std::numeric_limits<int64_t>::max() / 1024) * 1024;
  const std::string container = "/sys/fs/cgroup/memory.";
  if (const auto limit = number_in(container + "max", "")) {
    int64_t used = number_in(container + "current", "").value_or(0);
    for (const char* files : {"active_file ", "inactive_file "}) {  // they go when memory is short
      used -= number_in(container + "stat", files).value_or(0);
    }
    bytes = std::min(bytes, *limit - used);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const int64_t used = number_in("/proc/self/status", "VmSize:").value_or(0) * 1024;
    bytes = std::min(bytes, static_cast<int64_t>(limit.rlim_cur) - used);
  }
  return std::max<int64_t>(bytes, 0);
}

}  // namespace duet
