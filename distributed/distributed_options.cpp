#include "distributed/init_distributed.h"
#include "base/error.h"

namespace duet {

const OptionFields& DistributedOptions::fields() {
  using O = DistributedOptions;
  static const OptionFields kFields = OptionFields::of<O>("DistributedOptions", [](const FieldAdder<O>& add) {
    const char* const bytes = "a number of bytes > 0";
    add("bucket_bytes", &O::bucket_bytes, "bytes of gradients that are summed at once")
        .in(above(0))
        .expects(bytes)
        .keyed("bucket_cap_mb")
        .read_by_hand("number of MiB, above 0, up to 1048576", "25");
    add("first_bucket_bytes", &O::first_bucket_bytes, "bytes of the first such bucket")
        .in(above(0))
        .expects(bytes)
        .keyed("first_bucket_mb")
        .read_by_hand("number of MiB, above 0, up to 1048576", "1");
    add("find_unused_parameters", &O::find_unused_parameters, "a parameter may lack a gradient on some ranks");
    add("broadcast_buffers", &O::broadcast_buffers, "rank 0's buffers for all, at the end of every step");
    add.key("timeout", "seconds, above 0, up to 1e+06", "that a call waits for other ranks", "120");
    add.key("start_timeout", "seconds, above 0, up to 1e+06", "likewise until the first step is through", "300");
  });
  return kFields;
}

void DistributedOptions::validate() const {
  require<ConfigError>(communicator != nullptr,
                       "[DistributedOptions] the communicator is null, expected that of "
                       "init_distributed(); leave it out for one process");
  check_options(*this);
}

}  // namespace duet
