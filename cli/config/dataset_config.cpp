#include "cli/config/dataset_config.h"
#include <algorithm>
#include <utility>
#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/registry.h"
#include "io/plain_tensor.h"

namespace duet {

namespace {

at::ScalarType read_dtype(const ConfigNode& node, const std::string& key) {
  std::vector<std::string> names;
  for (const FileType& type : kFileTypes) {
    names.emplace_back(type.dtype);
    if (node.need<std::string>(key) == type.dtype) return type.type;
  }
  node.fail_value(key, "a dtype; " + known_and_nearest(node.need<std::string>(key), names));
}

template <class Map>
void check_names(const Map& map, const ConfigNode& node, const Batch& batch) {
  for (const auto& [name, value] : map) {
    if (batch.has(name)) continue;
    std::vector<std::string> names;
    for (const auto& item : batch.items()) names.push_back(item.first);
    node.fail(name, "is no tensor of this dataset; " + known_and_nearest(name, names));
  }
}

// The samples of another dataset under other names, or with other dtypes.
class RenamedDataset : public DatasetView {
 public:
  RenamedDataset(std::shared_ptr<const Dataset> dataset, DatasetAdditions additions, ConfigNode node)
      : DatasetView(std::move(dataset)), additions_(std::move(additions)), node_(std::move(node)) {}

  Batch draw(const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws) const override {
    return additions_.renamed_and_cast(viewed().draw(indices, draws), node_);
  }
  std::vector<int64_t> labels() const override {
    const auto makes_target = [](const auto& item) { return item.second == "target"; };
    const bool renames = additions_.renamed.contains("target") || additions_.casts.contains("target") ||
                         std::any_of(additions_.renamed.begin(), additions_.renamed.end(), makes_target);
    return renames ? Dataset::labels() : viewed().labels();
  }

 private:
  DatasetAdditions additions_;
  ConfigNode node_;
};

// A cast to integers that keeps every value. Throws DataError for one that would not.
at::Tensor cast_whole(const at::Tensor& tensor, at::ScalarType dtype, const std::string& name) {
  const at::Tensor made = tensor.to(dtype);
  if (!at::isIntegralType(dtype, /*includeBool=*/true) || made.to(tensor.scalar_type()).equal(tensor)) return made;
  throw DataError(c10::str("[Dataset] found values of '", name, "' (", tensor.scalar_type(), ", e.g. ",
                           tensor.masked_select(made.to(tensor.scalar_type()).ne(tensor))[0].item<double>(), ") that ",
                           dtype, " cannot hold, expected whole numbers in its range; cast it to another ",
                           "dtype. Pictures of an ImageFolder are float32 in [0, 1] already"));
}

}  // namespace

Batch DatasetAdditions::renamed_and_cast(const Batch& batch, const ConfigNode& node) const {
  check_names(renamed, node.child("rename"), batch);
  Batch made;
  for (const auto& [name, tensor] : batch.items()) {
    const auto found = renamed.find(name);
    const std::string& new_name = found == renamed.end() ? name : found->second;
    if (made.has(new_name)) {
      node.child("rename").fail("", "gives two tensors the name '" + new_name + "'; choose another");
    }
    made.set(new_name, tensor);
  }
  check_names(casts, node.child("cast"), made);
  for (const auto& [name, dtype] : casts) made.set(name, cast_whole(made[name], dtype, name));
  made.set_sample_ids(batch.sample_ids());
  return made;
}

DatasetAdditions read_dataset_additions(const ConfigNode& node) {
  DatasetAdditions additions;
  for (const ConfigNode& item : node.list("transforms")) additions.transforms.push_back(register_transform.make(item));
  const ConfigNode renamed = node.child("rename"), casts = node.child("cast");
  for (const std::string& name : renamed.keys()) additions.renamed[name] = renamed.need<std::string>(name);
  for (const std::string& name : casts.keys()) additions.casts[name] = read_dtype(casts, name);
  return additions;
}

std::shared_ptr<const Dataset> with_additions(std::shared_ptr<const Dataset> dataset, DatasetAdditions additions,
                                              const ConfigNode& node) {
  Transforms transforms = std::move(additions.transforms);
  if (additions.changes_names()) {
    dataset = std::make_shared<RenamedDataset>(std::move(dataset), std::move(additions), node);
  }
  if (transforms.empty()) return dataset;
  return std::make_shared<TransformedDataset>(std::move(dataset), std::move(transforms));
}

}  // namespace duet
