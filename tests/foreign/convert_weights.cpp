// Reads each file of a list and writes what it holds to another: convert_weights LIST, lines "FROM TO".
#include <fstream>
#include <iostream>
#include "base/error.h"
#include "checkpoint/weights_file.h"
#include "io/pt_file.h"
#include "io/safetensors.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: convert_weights LIST\n";
    return 2;
  }
  std::ifstream list(argv[1]);
  std::string from, to;
  try {
    while (list >> from >> to) {
      if (from.ends_with(".pt")) {
        duet::write_weights(to, duet::read_pt(from).state);
      } else {
        duet::write_weights(to, duet::read_weights({.path = from, .revise_keys = std::vector<duet::NameRule>()}));
      }
    }
  } catch (const duet::Error& error) {
    std::cerr << error.what() << '\n';
    return error.exit_code();
  }
  return 0;
}
