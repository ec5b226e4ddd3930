#pragma once

namespace duet {

// Sets what NCCL and its process group read from the environment, for sums that captured steps hold. What the user has
// set stays. Throws ConfigError for a value that the allocator's settings forbid.
void set_nccl_environment();

}  // namespace duet
