#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace duet {

// Between two looks into a store. Many ranks ask one: those who wait long ask seldom. Private to core/comm.
class Pause {
 public:
  void take() {
    std::this_thread::sleep_for(length_);
    length_ = std::min(length_ * 5 / 4, std::chrono::milliseconds(200));
  }

 private:
  std::chrono::milliseconds length_{10};
};

}  // namespace duet
