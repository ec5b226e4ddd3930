#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <ATen/record_function.h>
#include "core/task.h"

namespace duet {

// The op that an exception came out of.
struct FailedOp {
  std::string op;         // the outermost: "addmm"; empty: none, or an error between ops
  std::string parameter;  // or buffer, the first that it reads, or else the one that was read last; empty: none
  bool reads = false;     // that parameter itself
  bool backward = false;
};

// While it lives, sees every op that this thread calls, and which one an exception leaves. One at a time in a process.
class OpFinder {
 public:
  explicit OpFinder(const Task& task);
  ~OpFinder();
  OpFinder(const OpFinder&) = delete;
  OpFinder& operator=(const OpFinder&) = delete;

  // Whether this thread has one: what runs under it may fail as well.
  static bool is_watching();

  const FailedOp& found() const { return found_; }
  const std::string& last_parameter() const { return last_; }

 private:
  struct Call;
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);
  std::string parameter_in(const at::RecordFunction& function) const;

  static OpFinder* present;
  std::unique_lock<std::mutex> alone_;
  std::unordered_map<const c10::StorageImpl*, std::string> names_;
  std::string last_;
  FailedOp found_;
  at::CallbackHandle handle_;
};

}  // namespace duet
