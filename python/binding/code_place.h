#pragma once

#include "python/binding/py.h"

namespace duet::python {

// While one of these lives, its thread runs the user's code of a step.
class UserCode {
 public:
  UserCode();
  ~UserCode();
  UserCode(const UserCode&) = delete;
  UserCode& operator=(const UserCode&) = delete;

 private:
  const PyFrameObject* outer_;
};

// Has messages name the line of that code, and speak of arguments as Python's functions call them.
void tell_in_python();

}  // namespace duet::python
