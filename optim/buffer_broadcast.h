#pragma once

#include <duet/core/batch.h>
#include <duet/core/comm/communicator.h>

#include <memory>
#include <vector>

namespace duet {

// Gives every rank the buffers of rank 0 (running statistics of BatchNorm), one broadcast per dtype. Plain code over
// tensors and operators, which a recorded update contains.
class BufferBroadcast {
 public:
  BufferBroadcast(const NamedTensors& buffers, std::shared_ptr<Communicator> communicator);
  void run();

 private:
  struct Group {                             // buffers of one dtype
    std::vector<at::Tensor> buffers, views;  // the model's, and their places in one flat tensor
    at::Tensor bytes;                        // that tensor's
  };
  std::shared_ptr<Communicator> communicator_;
  std::vector<Group> groups_;
};

}  // namespace duet
