#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include "base/batch.h"
#include "distributed/communicator.h"

namespace duet {

// Gives every rank the buffers of rank 0 (running statistics of BatchNorm), one broadcast per dtype. Plain code over
// tensors and operators, which a recorded step contains.
class BufferBroadcast {
 public:
  explicit BufferBroadcast(std::shared_ptr<Communicator> communicator);
  // The buffers as they are now: eager code may have put others in the place of the first ones. Throws ConfigError if
  // they have other names, types or shapes than those of rank 0.
  void run(const NamedTensors& buffers);
  // A number that tells the types and shapes which the buffers of the last run() have now.
  uint64_t layout() const;
  // The next run() makes sure that these are the same on all ranks, whatever this one sees.
  void recheck() { rechecks_ = true; }

 private:
  void make_groups(const NamedTensors& buffers);
  void agree_on_layout(const NamedTensors& buffers);
  struct Group {                             // buffers of one dtype
    std::vector<at::Tensor> buffers, views;  // the model's, and their places in one flat tensor
    at::Tensor bytes;                        // that tensor's
  };
  std::shared_ptr<Communicator> communicator_;
  std::vector<Group> groups_;
  std::vector<std::pair<const void*, int64_t>> known_;  // memory and size of the buffers that groups_ is made for
  std::string agreed_;                                  // their names, types and shapes
  std::vector<at::Tensor> last_;                        // those of the last run()
  bool rechecks_ = false;
};

// Makes sure that all ranks start from the same parameters and buffers. Throws ConfigError on every rank if names,
// shapes or types differ. Values that differ from rank 0's are replaced by them, and a warning says so.
void make_same_model(const NamedTensors& tensors, Communicator& communicator);

}  // namespace duet
