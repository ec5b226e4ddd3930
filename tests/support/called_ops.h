#pragma once

#include <map>
#include <memory>
#include <string>
#include <ATen/record_function.h>

namespace duet::testing {

// Operators that this thread calls while it lives: how often, by name. One at a time.
class CalledOps {
 public:
  CalledOps() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(note).scopes({kFunctions}))) {
    counts().clear();
  }
  ~CalledOps() { at::removeCallback(handle_); }
  CalledOps(const CalledOps&) = delete;
  CalledOps& operator=(const CalledOps&) = delete;

  static std::map<std::string, int>& counts() {
    static thread_local std::map<std::string, int> counts;
    return counts;
  }

 private:
  static constexpr at::RecordScope kFunctions = at::RecordScope::FUNCTION;
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& call) {
    ++counts()[call.name()];
    return nullptr;
  }
  at::CallbackHandle handle_;
};

}  // namespace duet::testing
