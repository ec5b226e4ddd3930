#pragma once

#include <exception>
#include <string>

namespace duet {

// What the program says of an error, and returns for it.
struct Failure {
  std::string text;
  int exit_code = 1;
};

// Without the C++ frames of LibTorch's texts, which help nobody here.
Failure failure_of(const std::exception_ptr& error);

// Where torchrun asks for it (TORCHELASTIC_ERROR_FILE), writes the text in its format, so that its summary shows it.
void write_error_file(const std::string& text);

}  // namespace duet
