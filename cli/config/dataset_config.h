#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "cli/config/config.h"
#include "data/transform.h"

namespace duet {

// What a config may say of any dataset, beside the dataset's own keys: `transforms: [{type: ...}]`,
// `rename: {input: image}`, `cast: {image: float32}`, in this order.
struct DatasetAdditions {
  std::vector<std::unique_ptr<const Transform>> transforms;
  std::map<std::string, std::string> renamed;
  std::map<std::string, at::ScalarType> casts;
};

DatasetAdditions read_dataset_additions(const ConfigNode& node);
std::shared_ptr<const Dataset> with_additions(std::shared_ptr<const Dataset> dataset, DatasetAdditions additions,
                                              const ConfigNode& node);

}  // namespace duet
