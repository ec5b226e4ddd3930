#pragma once

#include <ATen/core/Tensor.h>
#include "communicator.h"
#include "launch.h"

#include <exception>
#include <memory>

namespace c10d {
class ProcessGroup;
}

namespace duet {

struct ConnectOptions {
  double start_timeout = 300;  // seconds that a call may wait for other ranks until the first step is through
  double timeout = 120;        // and from then on
  // A world of one gets a communicator as well and pays for its collectives: to try them, and their capture, alone.
  bool also_alone = false;

  // Throws ConfigError naming the field and its range.
  void validate() const;
};

// Meets the other ranks: c10d's TCPStore, Gloo for the CPU, NCCL for CUDA. Null for a world of one, which needs
// nothing (see also_alone). Throws ConfigError if the meeting place cannot be used or the ranks do not fit together,
// and PeerError if some do not come in time.
std::shared_ptr<Communicator> connect(const Launch& launch, at::Device device, const ConnectOptions& options = {});

// For a rank that cannot train, instead of connect(): waits until the others are there, whose connect() throws an error
// of the same type that names this rank. Gives up silently where they cannot be reached: the rank has its own error to
// report.
void fail_to_connect(const Launch& launch, const std::exception_ptr& error, const ConnectOptions& options = {});

// Over a process group that the caller made, which must have a CPU backend, and one for `device`; null for a group of
// one (see also_alone). Errors that another rank causes do not name it,
// and a GPU that waits for a lost one is not freed from that.
std::shared_ptr<Communicator> connect(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                                      const ConnectOptions& options = {});

}  // namespace duet
