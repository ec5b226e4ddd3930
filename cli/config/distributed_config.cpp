#include "cli/config/distributed_config.h"
#include <cmath>
#include <limits>
#include "cli/config/config_options.h"

namespace duet {

namespace {

constexpr double kMiB = 1 << 20;

int64_t read_mebibytes(const ConfigNode& node, const char* key, int64_t bytes) {
  constexpr double kMost = 1 << 20;
  const double fallback = static_cast<double>(bytes) / kMiB;
  const double size = node.read_number(key, fallback, std::numeric_limits<double>::min(), kMost);
  return static_cast<int64_t>(std::ceil(size * kMiB));
}

double read_timeout(const ConfigNode& node, const char* key, double seconds) {
  constexpr double kMost = 1e6;
  return node.read_number(key, seconds, std::numeric_limits<double>::min(), kMost);
}

}  // namespace

void read_distributed(const ConfigNode& node, DistributedOptions& options, ConnectOptions& connect) {
  options = read_options(node, options);
  options.bucket_bytes = read_mebibytes(node, "bucket_cap_mb", options.bucket_bytes);
  options.first_bucket_bytes = read_mebibytes(node, "first_bucket_mb", options.first_bucket_bytes);
  connect.timeout = read_timeout(node, "timeout", connect.timeout);
  connect.start_timeout = read_timeout(node, "start_timeout", connect.start_timeout);
}

}  // namespace duet
