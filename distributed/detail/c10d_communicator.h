#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include "distributed/communicator.h"
#include "distributed/detail/peer_watch.h"

namespace duet {

struct CommunicatorTimeouts {
  std::chrono::milliseconds start{std::chrono::minutes(5)};  // until the first step is through
  std::chrono::milliseconds running{std::chrono::minutes(2)};
};

// Over backends of c10d: Gloo for the host's numbers, and Gloo or NCCL for the tensors of the device.
// It has a member for each call of Communicator, and for each backend and its timeouts.
class C10dCommunicator : public Communicator {
 public:
  // `watch` may be null: then errors name no rank.
  C10dCommunicator(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Backend> device,
                   std::unique_ptr<PeerWatch> watch, CommunicatorTimeouts timeouts, at::Device place = at::kCPU);
  ~C10dCommunicator() override;
  // Keeps the store as long as this object: rank 0 holds it for all.
  void hold(c10::intrusive_ptr<c10d::Store> store) { store_ = std::move(store); }

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }
  at::Device device() const override { return place_; }
  using Communicator::broadcast;
  std::vector<std::string> all_gather(const std::string& bytes, bool of_one_size) override;
  std::string broadcast(const std::string& bytes, int64_t root) override;
  void report(int64_t step, const char* phase) override;
  void report(const char* phase) override;
  void set_running(bool running) override { running_ = running; }
  void use_start_timeout(bool patient) override { patient_ = patient; }
  void announce_main_work() override;
  void fail(const std::string& reason) override;

 protected:
  void do_start_sum(const at::Tensor& values) override;
  void do_start_broadcast(const at::Tensor& values, int64_t root) override;
  void do_finish(const at::Tensor& values) override;

 private:
  // Of one call.
  std::chrono::milliseconds limit() const { return running_ && !patient_ ? timeouts_.running : timeouts_.start; }
  // What c10d is told. A patient rank counts by itself, as rank 0 may be at work.
  std::chrono::milliseconds timeout() const { return patient_ && watch_ ? std::chrono::hours(24 * 365) : limit(); }
  template <class Call>
  auto guarded(Call call) -> decltype(call());
  void wait(const c10::intrusive_ptr<c10d::Work>& work);
  at::Tensor gather_bytes(const void* data, std::size_t size);
  struct CallHead;
  std::vector<CallHead> begin_call(CallHead own, const std::string& bytes);
  // Ends what this rank's device waits for, from any thread.
  struct DeviceEnd;
  void abandon();

  c10::intrusive_ptr<c10d::Store> store_;  // goes last
  int64_t rank_, world_size_;
  at::Device place_;
  c10::intrusive_ptr<c10d::Backend> host_, device_;
  bool device_waits_on_host_;  // a work's wait() blocks this thread, not a stream
  std::shared_ptr<DeviceEnd>
      device_end_;  // null: this rank waits on the host alone, or the device's group is the caller's
  std::unique_ptr<PeerWatch> watch_;
  CommunicatorTimeouts timeouts_;
  bool running_ = false, patient_ = false;
  std::string failure_;  // why no call works any more; empty: they do
  std::unordered_map<const void*, c10::intrusive_ptr<c10d::Work>> open_;
};

}  // namespace duet
