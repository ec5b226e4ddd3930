#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace duet {

// Knows what the other ranks do, through a store that outlives the group's collectives: each rank writes its progress
// there several times a second, and why it failed. Private to core/comm.
class PeerWatch {
 public:
  // `store` is used by nobody else: it may hang when the process that holds it is stopped. `holds_store`: this process
  // is the one, and must not be gone before the others know why it failed.
  PeerWatch(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t world_size, bool holds_store);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  void report(int64_t update, const char* phase);
  // Where this rank is: "update 12 (checkpoint)".
  std::string place() const;
  void fail(const std::string& reason);
  // A call that waits for others has failed with `error`: who is to blame, as far as can be found out in about half a
  // second.
  std::string diagnose(const std::string& error);

 private:
  struct Shared;
  static void beat(const std::shared_ptr<Shared>& shared);
  static std::string look(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;  // with the thread, which is left behind if the store hangs
  bool holds_store_;
};

}  // namespace duet
