// Models of a program's own: ResNet and ViT with the names of torchvision and timm, whose weights load into them, and a
// language model. Every command of duet, with these types in YAML.
//
// run:      build/release/examples/08_models train examples/08_models/resnet.yaml --mode graph
//           build/release/examples/08_models help ViT

#include <duet/cli/run_cli.h>
#include "register_models.h"

int main(int argc, char** argv) {
  register_models();
  return duet::run_cli(argc, argv);
}
