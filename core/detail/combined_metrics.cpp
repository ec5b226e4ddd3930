#include "core/detail/combined_metrics.h"
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "distributed/communicator.h"
#include "distributed/detail/same_on_all_ranks.h"
#include "metrics/metric.h"

namespace duet {

namespace {

// "auroc: Float [3]" for rows of three numbers.
std::string row_text(const Metric& metric, const at::Tensor& rows) {
  const std::vector<std::string> names = metric.names();
  return c10::str(names.empty() ? "a metric" : names.front(), ": ", rows.scalar_type(), " ", rows.sizes().slice(1),
                  "\n");
}

void gather_rows(const std::vector<Metric*>& metrics, Communicator& ranks) {
  std::vector<at::Tensor*> parts;
  std::string text;
  for (Metric* metric : metrics) {
    for (at::Tensor* rows : metric->rows()) {
      text += row_text(*metric, *rows);
      parts.push_back(rows);
    }
  }
  check_same_on_all_ranks<ConfigError>(ranks, text, [](const RankDifference& found) {
    return c10::str("[Metric] found other rows on rank ", found.rank, " than on rank 0 (", found.there, "; on rank 0 ",
                    found.on_first, "), expected tensors of the same types and row shapes everywhere; give all ranks ",
                    "the same metrics, and correct Metric::rows()");
  });
  for (at::Tensor* rows : parts) {
    const at::Tensor own = rows->contiguous();
    std::vector<at::Tensor> all;
    for (std::string& bytes : ranks.all_gather({static_cast<const char*>(own.const_data_ptr()), own.nbytes()})) {
      std::vector<int64_t> shape = own.sizes().vec();
      const int64_t row_bytes =
          std::accumulate(shape.begin() + 1, shape.end(), own.element_size(), std::multiplies<>());
      shape.front() = static_cast<int64_t>(bytes.size()) / row_bytes;
      all.push_back(at::from_blob(bytes.data(), shape, own.options()).clone());
    }
    *rows = at::cat(all);
  }
}

void sum_over_ranks(const std::vector<Metric*>& metrics, Communicator& ranks, at::Device device) {
  std::vector<at::Tensor> parts;
  std::string text;  // a line for each tensor: "accuracy: Double [2]"
  for (Metric* metric : metrics) {
    const std::vector<std::string> names = metric->names();
    for (at::Tensor& part : metric->sums(device)) {
      text += c10::str(names.empty() ? "a metric" : names.front(), ": ", part.scalar_type(), " ", part.sizes(), "\n");
      parts.push_back(std::move(part));
    }
  }
  // Sums of different tensors would be of nothing, or wait for each other for ever.
  check_same_on_all_ranks<ConfigError>(ranks, text, [](const RankDifference& found) {
    return c10::str("[Metric] found other sums on rank ", found.rank, " than on rank 0 (", found.there, "; on rank 0 ",
                    found.on_first, "), expected tensors of the same types and shapes everywhere, zeros on a rank ",
                    "without samples; give all ranks the same metrics, and correct Metric::sums()");
  });
  for (at::Tensor& part : parts) {
    const at::Tensor sums = part.contiguous();
    ranks.start_sum(sums);
    ranks.finish(sums);
    if (!sums.is_same(part)) part.copy_(sums);
  }
}

}  // namespace

void combine_over_ranks(const std::vector<Metric*>& metrics, Communicator& ranks, at::Device device) {
  if (ranks.is_single()) return;  // sums() moves its tensors to the device
  gather_rows(metrics, ranks);
  sum_over_ranks(metrics, ranks, device);
}

}  // namespace duet
