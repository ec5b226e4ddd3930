#include <duet/cli/run_cli.h>
#include "spirals.h"

int main(int argc, char** argv) {
  register_types();
  return duet::run_cli(argc, argv);
}
