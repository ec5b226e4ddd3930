#include "base/detail/peak_memory.h"
#include <fstream>
#include <sstream>
#include <string>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>
#include <sys/resource.h>

namespace duet {

namespace {

c10::DeviceAllocator* allocator_of(at::Device device) {
  return device.is_cpu() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

at::DeviceIndex index_of(at::Device device) { return device.has_index() ? device.index() : at::DeviceIndex{0}; }

// What /proc says; 0 if the system does not tell. Takes the kernel a while.
int64_t peak_of_status() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) != 0) continue;
    int64_t kilobytes = 0;
    std::istringstream(line.substr(6)) >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

int64_t peak_of_usage() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

// What the program that started this one by exec() left behind in the count of getrusage(); 0: nothing.
int64_t inherited_peak() {
  static const int64_t kInherited = [] {
    const int64_t usage = peak_of_usage();
    const int64_t own = peak_of_status();
    return own > 0 && usage > own ? usage : 0;
  }();
  return kInherited;
}

int64_t resident_peak() {
  const int64_t inherited = inherited_peak();
  const int64_t usage = peak_of_usage();
  if (usage > inherited) return usage;
  const int64_t own = peak_of_status();
  return own > 0 ? own : usage;
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

}  // namespace duet
