#include "distributed/distributed_options.h"

#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

void DistributedOptions::validate() const {
  require<ConfigError>(communicator != nullptr, "[DistributedOptions] the communicator is null, expected that of "
                                                "init_distributed(); leave it out for one process");
  const auto check = [](const char* field, int64_t value) {
    if (value > 0) return;
    throw ConfigError(c10::str("[DistributedOptions] ", field, " is ", value, ", expected a number of bytes > 0"));
  };
  check("bucket_bytes", bucket_bytes);
  check("first_bucket_bytes", first_bucket_bytes);
}

}  // namespace duet
