#include "cli/run_cli.h"

int main(int argc, char** argv) { return duet::run_cli(argc, argv); }
