#include <duet/core/peak_memory.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>
#include <sys/resource.h>

#include <fstream>
#include <sstream>
#include <string>

namespace duet {

namespace {

c10::DeviceAllocator* allocator_of(at::Device device) {
  return device.is_cpu() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

at::DeviceIndex index_of(at::Device device) { return device.has_index() ? device.index() : at::DeviceIndex{0}; }

// Peak resident memory since the last reset, which getrusage() does not know; 0 if the system does not tell.
int64_t resident_peak() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) != 0) continue;
    int64_t kilobytes = 0;
    std::istringstream(line.substr(6)) >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

int64_t peak_bytes(at::Device device) {
  if (auto* allocator = allocator_of(device)) {
    if (!allocator->initialized()) return 0;
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return allocator->getDeviceStats(index_of(device)).allocated_bytes[kAll].peak;
  }
  if (const int64_t peak = resident_peak(); peak > 0) return peak;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
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
