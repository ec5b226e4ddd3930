#include "data/tensor_dataset.h"
#include <algorithm>
#include <set>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "data/detail/dataset_check.h"
#include "io/safetensors.h"

namespace duet {

TensorDataset::TensorDataset(const NamedTensors& tensors) {
  require<DataError>(!tensors.empty(), "[TensorDataset] found no tensor, expected at least one; pass some");
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    require<DataError>(names.insert(name).second,
                       "[TensorDataset] found two tensors '" + name + "', expected one; rename one");
    require<DataError>(tensor.defined(), "[TensorDataset] tensor '" + name + "': found it undefined; give it a value");
    if (tensor.dim() == 0 || tensor.size(0) == 0) {
      throw DataError(c10::str("[TensorDataset] tensor '", name, "': found shape ", tensor.sizes(),
                               ", expected one row per sample; leave it out or give it rows"));
    }
    const auto& [first_name, first] = tensors.front();
    if (tensor.size(0) != first.size(0)) {
      throw DataError(c10::str("[TensorDataset] tensor '", name, "': found ", tensor.size(0), " rows, expected ",
                               first.size(0), " as in '", first_name, "'; give all the same number of samples"));
    }
    tensors_.emplace_back(name, tensor.detach().cpu().contiguous());
  }
}

TensorDataset TensorDataset::from_file(const std::string& path) {
  const NamedTensors tensors = read_safetensors(path);
  try {
    return TensorDataset(tensors);
  } catch (const DataError& error) {
    throw DataError("[TensorDataset] file '" + path + "': " + error.what());
  }
}

Batch TensorDataset::get(const std::vector<int64_t>& indices) const {
  check_indices("TensorDataset", indices, size());
  const at::Tensor index = at::empty({static_cast<int64_t>(indices.size())}, at::TensorOptions(at::kLong));
  std::copy(indices.begin(), indices.end(), index.mutable_data_ptr<int64_t>());
  Batch batch;
  for (const auto& [name, tensor] : tensors_) batch.set(name, at::index_select(tensor, 0, index));
  return batch;
}

}  // namespace duet
