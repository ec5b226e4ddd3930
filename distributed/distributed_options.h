#pragma once

#include <cstdint>
#include <memory>
#include "../base/options.h"

namespace duet {

class Communicator;

// The ranks that init_distributed() connected, as long as somebody holds them; else one_process().
std::shared_ptr<Communicator> current_ranks();

// How several processes train one model (data parallel, DDP): each has a part of every batch, gradients are summed.
struct DistributedOptions {
  std::shared_ptr<Communicator> communicator = current_ranks();  // never null
  int64_t bucket_bytes = int64_t{25} << 20;       // of gradients that are summed at once; torch's bucket_cap_mb
  int64_t first_bucket_bytes = int64_t{1} << 20;  // smaller, so that communication starts early
  bool find_unused_parameters = false;            // a parameter may lack a gradient on some ranks: it counts as zero
  bool broadcast_buffers = true;                  // rank 0's buffers for all, at the end of every step

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const;
};

}  // namespace duet
