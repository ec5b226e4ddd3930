#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "cli/config/config.h"
#include "data/data_source.h"
#include "data/transform.h"

namespace duet {

struct SourceContext;

// What a config may say of any dataset or stream, beside its own keys: `rename: {input: image}`,
// `cast: {image: float32}`, `transforms: [{type: ...}]`, done in this order.
struct DatasetAdditions {
  std::map<std::string, std::string> renamed;
  std::map<std::string, at::ScalarType> casts;
  Transforms transforms;

  bool changes_names() const { return !renamed.empty() || !casts.empty(); }
  // The batch under other names, or with other dtypes. Throws ConfigError with the place in `node`, which holds
  // `rename` and `cast`, for a tensor that is not there or a name that is taken.
  Batch renamed_and_cast(const Batch& batch, const ConfigNode& node) const;
};

DatasetAdditions read_dataset_additions(const ConfigNode& node);
std::shared_ptr<const Dataset> with_additions(std::shared_ptr<const Dataset> dataset, DatasetAdditions additions,
                                              const ConfigNode& node);
// Random transforms of a stream's samples follow from their numbers (Batch::sample_ids), or where it gives none from
// how many this process has read in the epoch.
std::unique_ptr<DataSource> with_additions(std::unique_ptr<DataSource> source, DatasetAdditions additions,
                                           const ConfigNode& node, const SourceContext& context);

}  // namespace duet
