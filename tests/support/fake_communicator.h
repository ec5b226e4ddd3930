#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>
#include "distributed/communicator.h"

namespace duet::testing {

// A rank whose collectives on tensors are functions of the test's; on the host all other ranks give what this one
// gives.
class FakeCommunicator : public Communicator {
 public:
  using Sum = std::function<void(const at::Tensor& values)>;
  using Broadcast = std::function<void(const at::Tensor& values, int64_t root)>;

  FakeCommunicator(int64_t rank, int64_t world_size, Sum sum = {}, Broadcast broadcast = {})
      : rank_(rank), world_size_(world_size), sum_(std::move(sum)), broadcast_(std::move(broadcast)) {}

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }
  using Communicator::broadcast;
  std::vector<std::string> all_gather(const std::string& bytes, bool /*of_one_size*/) override {
    return std::vector<std::string>(static_cast<std::size_t>(world_size_), bytes);
  }
  std::string broadcast(const std::string& bytes, int64_t /*root*/) override { return bytes; }
  void report(int64_t /*step*/, const char* /*phase*/) override {}
  void fail(const std::string& /*reason*/) override {}

  int calls = 0;  // sums and broadcasts
  int sums = 0;

 protected:
  void do_start_sum(const at::Tensor& values) override {
    ++calls;
    ++sums;
    if (sum_) sum_(values);
  }
  void do_start_broadcast(const at::Tensor& values, int64_t root) override {
    ++calls;
    if (broadcast_) broadcast_(values, root);
  }
  void do_finish(const at::Tensor& /*values*/) override {}

 private:
  int64_t rank_, world_size_;
  Sum sum_;
  Broadcast broadcast_;
};

}  // namespace duet::testing
