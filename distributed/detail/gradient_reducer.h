#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <c10/core/Stream.h>
#include "base/batch.h"
#include "distributed/communicator.h"

namespace duet {

// Sums gradients over the ranks of a group in buckets. A bucket is on its way as soon as the last of its gradients is
// ready, while backward goes on; buckets hold parameters in reverse order of registration, which is about that of
// backward, and are started in the same order on all ranks. After finish() the gradients lie in the buckets.
//
// It is plain code over tensors and operators: what eager mode runs, graph mode records.
class GradientReducer {
 public:
  // The parameters are the same on all ranks (make_same_model).
  GradientReducer(const NamedTensors& parameters, std::shared_ptr<Communicator> communicator,
                  const DistributedOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Host side, before each step: where others train than before, or in another memory format, the ranks agree on new
  // buckets.
  void prepare();
  // A number that tells which parameters train, and their strides.
  uint64_t layout() const;
  // The next prepare() makes sure that these are the same on all ranks, whatever this one sees.
  void recheck() { rechecks_ = true; }
  // Before each run of a step, of which a line search or a comparison takes several: nothing is ready.
  void begin();
  // Before the backward of the step's last micro-batch: from now on a gradient goes to its bucket when it is ready,
  // that is when autograd has added to it as often as in the steps before. Nothing earlier, so that the micro-batches
  // of a step cost one reduction.
  void arm() { armed_ = true; }
  // After the last backward: sends what is left and waits for all. A rank without a micro-batch, which was not armed,
  // gives zeros. Throws ConfigError naming parameters that got no gradient, unless that may be.
  void finish();

 private:
  struct Entry;
  struct Bucket;
  class ReadyHook;

  void make_buckets();
  void place_buckets();
  void check_same_buckets() const;
  void add_hooks();
  void remove_hooks();
  void follow_stream();
  void touched(std::size_t entry);
  void take(std::size_t entry);
  static void hand_out(const Entry& entry);
  void start_full_buckets();
  void fill_missing(bool has_batch);
  void agree_on_unused(const std::vector<std::size_t>& missing, bool has_batch);
  std::string names_of(const std::vector<std::size_t>& entries) const;
  [[noreturn]] void refuse_missing(const std::vector<std::size_t>& missing, std::size_t rank) const;

  std::shared_ptr<Communicator> communicator_;
  DistributedOptions options_;
  std::vector<Entry> entries_;                   // one per parameter
  std::vector<Bucket> buckets_;                  // in the order in which they are started
  std::map<at::ScalarType, at::Tensor> memory_;  // what they lie in
  std::size_t started_ = 0;                      // buckets of this step that are on their way
  std::optional<c10::Stream> stream_;            // that the hooks' nodes belong to
  bool armed_ = false;
  bool agreed_on_unused_ = false;
  bool rechecks_ = false;
};

}  // namespace duet
