#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include <duet/base/options.h>
#include <duet/core/losses.h>

namespace duet {
class Task;
}

struct ResNetOptions {
  int64_t num_classes = 10;
  int64_t in_channels = 3;
  std::vector<int64_t> depths = {2, 2, 2, 2};  // blocks of each stage; {3, 4, 6, 3}: ResNet-34
  int64_t width = 64;                          // channels of the first stage; each further one doubles them
  std::string stem = "small";  // imagenet: 7x7 of stride 2 and a max pool; small: 3x3, for small pictures
  duet::LossOptions loss{};

  static const duet::OptionFields& fields();
};

// A ResNet of basic blocks (He et al. 2015), with the names of torchvision: weights of its resnet18 and resnet34 load
// into stem: imagenet. Takes "image" and "target" as SmallCnn; any size of pictures.
std::unique_ptr<duet::Task> make_resnet(const ResNetOptions& options = {});
