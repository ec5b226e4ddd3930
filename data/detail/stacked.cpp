#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "data/detail/samples.h"

namespace duet {

namespace {

void check_row(const at::Tensor& row, const at::Tensor& first, const std::string& what) {
  if (row.scalar_type() != first.scalar_type()) {
    throw DataError(c10::str(what, " is ", row.scalar_type(), ", that of the first sample ", first.scalar_type(),
                             ", expected one dtype for a batch; set cast: {<tensor>: <dtype>}"));
  }
  if (row.sizes() != first.sizes()) {
    throw DataError(c10::str(what, " is ", row.sizes().slice(1), ", that of the first sample ", first.sizes().slice(1),
                             ", expected one shape for a batch; add transforms: [{type: Resize, size: [H, W]}]"));
  }
}

}  // namespace

Batch stacked(const std::vector<Batch>& samples, const std::vector<int64_t>& indices) {
  Batch batch;
  for (const auto& [name, first] : samples.front().items()) {
    std::vector<at::Tensor> rows;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!samples[i].has(name) || samples[i].items().size() != samples.front().items().size()) {
        throw DataError(c10::str("[Dataset] sample ", indices[i], " has other tensors than sample ", indices[0],
                                 ", where '", name, "' is one; expected the same names in all; set rename"));
      }
      check_row(samples[i][name], first, c10::str("[Dataset] '", name, "' of sample ", indices[i]));
      rows.push_back(samples[i][name]);
    }
    batch.set(name, rows.size() == 1 ? first : at::cat(rows));
  }
  return batch;
}

}  // namespace duet
