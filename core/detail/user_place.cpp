#include "core/detail/user_place.h"
#include <sstream>
#include <utility>
#include "base/detail/text.h"

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

// A call is 'File "/home/me/net.py", line 8, in forward', and its code on the next line. One without a file,
// "<string>", counts if there is no other.
std::string python_place(const std::string& trace) {
  std::string place;
  bool has_file = false;
  std::istringstream lines(trace);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t file = line.find("File \""), number = line.find("\", line "), function = line.find(", in ");
    if (file == std::string::npos || number == std::string::npos || function == std::string::npos ||
        function < number || number < file + 6 || line.find("/torch/") != std::string::npos) {
      continue;
    }
    const std::string path = line.substr(file + 6, number - file - 6);
    if (has_file && path.starts_with('<')) continue;
    has_file = !path.starts_with('<');
    place = path.substr(path.rfind('/') + 1) + ":" + line.substr(number + 8, function - number - 8) + " in " +
            line.substr(function + 5);
  }
  return one_line(place, 200);
}

UserPlace::UserPlace(const std::string& place) : before_(std::exchange(running, &place)) {}

UserPlace::~UserPlace() { running = before_; }

}  // namespace duet
