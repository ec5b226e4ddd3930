#pragma once

#include <optional>
#include <string>

namespace duet {

// Where a language that calls duet is in its user's code: "train.py:31 in forward", empty if in none of it.
using FindUserPlace = std::string (*)();
void set_user_place(FindUserPlace find);
// Nothing where C++ calls.
std::optional<std::string> user_place();

// "net.py:8 in forward" of the innermost call in a trace of Python or TorchScript that is the user's, PyTorch's own
// files help nobody; empty if there is none.
std::string python_place(const std::string& trace);

// While it lives, this thread runs what the user wrote at `place`. Keeps a reference to the text.
class UserPlace {
 public:
  explicit UserPlace(const std::string& place);
  ~UserPlace();
  UserPlace(const UserPlace&) = delete;
  UserPlace& operator=(const UserPlace&) = delete;

 private:
  const std::string* before_;
};

}  // namespace duet
