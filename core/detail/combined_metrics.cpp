#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/detail/evaluator.h"
#include "distributed/communicator.h"
#include "distributed/detail/same_on_all_ranks.h"
#include "metrics/metric.h"

namespace duet {

namespace {

// "auroc: Float [3]", a line for each.
std::string part_text(const Metric& metric, const char* what, const at::Tensor& tensor, at::IntArrayRef sizes) {
  const std::vector<std::string> names = metric.names();
  return c10::str(what, " of ", names.empty() ? "a metric" : names.front(), ": ", tensor.scalar_type(), " ", sizes,
                  "\n");
}

// Those of all ranks, one after the other.
void gather(at::Tensor& rows, Communicator& ranks) {
  const at::Tensor own = rows.contiguous();
  std::vector<at::Tensor> all;
  for (std::string& bytes : ranks.all_gather({static_cast<const char*>(own.const_data_ptr()), own.nbytes()})) {
    std::vector<int64_t> shape = own.sizes().vec();
    const int64_t row_bytes = std::accumulate(shape.begin() + 1, shape.end(), own.element_size(), std::multiplies<>());
    shape.front() = static_cast<int64_t>(bytes.size()) / row_bytes;
    all.push_back(at::from_blob(bytes.data(), shape, own.options()).clone());
  }
  rows = at::cat(all);
}

void sum(const at::Tensor& part, Communicator& ranks) {
  const at::Tensor sums = part.contiguous();
  ranks.start_sum(sums);
  ranks.finish(sums);
  if (!sums.is_same(part)) part.copy_(sums);
}

}  // namespace

void combine_over_ranks(const std::vector<Metric*>& metrics, Communicator& ranks, at::Device device) {
  if (ranks.is_single()) return;  // sums() moves its tensors to the device
  std::vector<at::Tensor*> rows;
  std::vector<at::Tensor> sums;
  std::string text;
  for (Metric* metric : metrics) {
    for (at::Tensor* part : metric->rows()) {
      text += part_text(*metric, "rows", *part, part->sizes().slice(1));
      rows.push_back(part);
    }
    for (at::Tensor& part : metric->sums(device)) {
      text += part_text(*metric, "sums", part, part.sizes());
      sums.push_back(std::move(part));
    }
  }
  // Sums of different tensors would be of nothing, or wait for each other for ever.
  check_same_on_all_ranks<ConfigError>(ranks, text, [](const RankDifference& found) {
    return c10::str("[Metric] found other tensors on rank ", found.rank, " than on rank 0 (", found.there,
                    "; on rank 0 ", found.on_first, "), expected the same types and shapes everywhere, zeros or no ",
                    "rows on a rank without samples; give all ranks the same metrics, and correct Metric::sums() or ",
                    "rows()");
  });
  for (at::Tensor* part : rows) gather(*part, ranks);
  for (const at::Tensor& part : sums) sum(part, ranks);
}

}  // namespace duet
