#pragma once

namespace duet {

// Ops that LibTorch computes by way of the host, so that a step with them could not be captured, though it need not:
// while a step is recorded or checked they run without. Called before the first recording.
void register_host_free_ops();

}  // namespace duet
