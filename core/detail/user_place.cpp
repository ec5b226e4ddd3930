#include "core/detail/user_place.h"
#include <utility>

namespace duet {

namespace {

FindUserPlace finder = nullptr;
thread_local const std::string* running = nullptr;

}  // namespace

void set_user_place(FindUserPlace find) { finder = find; }

std::optional<std::string> user_place() {
  if (running != nullptr) return *running;
  return finder != nullptr ? std::optional(finder()) : std::nullopt;
}

UserPlace::UserPlace(const std::string& place) : before_(std::exchange(running, &place)) {}

UserPlace::~UserPlace() { running = before_; }

}  // namespace duet
