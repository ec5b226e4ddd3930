#include "graph/kernels/chains.h"
#include <algorithm>
#include <numeric>
#include <ATen/Parallel.h>
#include "base/detail/stack_tensors.h"
#include "graph/kernels/kernel_tensors.h"

// Ops that follow each other and work row by row, where their tensors are larger than the cache: as many rows as fit
// into it go through all of them before the next ones do. No op rounds otherwise than it does alone.

namespace duet {

namespace {

// How an op touches a storage.
struct Access {
  at::Tensor tensor;
  bool is_cut, is_written;

  bool is_of(const Access& other) const {
    return tensor.storage().unsafeGetStorageImpl() == other.tensor.storage().unsafeGetStorageImpl();
  }
  bool is_in_the_same_place(const Access& other) const {
    return tensor.storage_offset() * tensor.itemsize() == other.tensor.storage_offset() * other.tensor.itemsize() &&
           tensor.nbytes() == other.tensor.nbytes();
  }
};

std::vector<Access> accesses_of(const OpCall& call, const RowByRow& work) {
  std::vector<Access> all;
  const auto add = [&](const at::Tensor& tensor, bool is_written) {
    const bool is_cut = std::ranges::any_of(work.cut, [&](const at::Tensor& cut) { return cut.is_same(tensor); });
    all.push_back({tensor, is_cut, is_written});
  };
  for (const c10::IValue& argument : call.arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) { add(tensor, call.writes(tensor)); });
  for (const at::Tensor& result : call.results)
    for_each_tensor(c10::IValue(result), [&](const at::Tensor& tensor) { add(tensor, /*is_written=*/true); });
  return all;
}

// Some ops one after the other.
class Chain {
 public:
  explicit Chain(const ChainSizes& sizes) : sizes_(sizes) {}

  // Takes the op if it can.
  bool add(const OpCall& call, const RowByRow& work) {
    if (work.rows == 0 || std::gcd(rows_, work.rows) < fewest_rows()) return false;
    if (!members_.empty() && (work.before || call.segment != segment_)) return false;
    const std::vector<Access> accesses = accesses_of(call, work);
    const std::vector<at::Tensor> more = new_cut(accesses);
    constexpr std::size_t kMostCut = 8;  // tensors: tiles of more would be small, and all of them live together
    if (!fits(accesses) || cut_.size() + more.size() > kMostCut) return false;
    segment_ = call.segment;
    rows_ = std::gcd(rows_, work.rows);
    cut_.insert(cut_.end(), more.begin(), more.end());
    accesses_.insert(accesses_.end(), accesses.begin(), accesses.end());
    members_.push_back(work);
    return true;
  }

  std::size_t size() const { return members_.size(); }
  bool pays() const { return size() > 1 && bytes() > sizes_.cached && bytes() / rows_ <= 4 * sizes_.tile; }

  std::function<void()> run() const {
    const int64_t fitting = std::max<int64_t>(1, sizes_.tile / std::max<int64_t>(1, bytes() / rows_));
    // Rows that are single elements go by whole vectors.
    const int64_t tile = fitting < kVectors ? fitting : fitting / kVectors * kVectors;
    return [members = members_, rows = rows_, tile, elements = bytes() / static_cast<int64_t>(sizeof(float))] {
      if (members.front().before) members.front().before();
      for_each_part(rows, elements, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i += tile) {
          for (const RowByRow& member : members) {
            const int64_t factor = member.rows / rows;
            member.run(i * factor, std::min(i + tile, end) * factor);
          }
        }
      });
    };
  }

 private:
  static int64_t fewest_rows() { return int64_t{8} * at::get_num_threads(); }  // that share them evenly enough

  // Whether it has something in common with the others, and nothing that other rows of theirs touch.
  bool fits(const std::vector<Access>& accesses) const {
    bool shares = members_.empty();
    for (const Access& mine : accesses) {
      for (const Access& other : accesses_) {
        if (!mine.is_of(other)) continue;
        const bool alike = mine.is_cut && other.is_cut && mine.is_in_the_same_place(other);
        const bool is_apart = !mine.is_cut && !other.is_cut && !mine.is_written && !other.is_written;
        if (!alike && !is_apart) return false;
        shares = shares || alike;
      }
    }
    return shares;
  }

  std::vector<at::Tensor> new_cut(const std::vector<Access>& accesses) const {
    std::vector<at::Tensor> tensors;
    for (const Access& access : accesses) {
      const auto is_known = [&](const at::Tensor& tensor) { return tensor.is_alias_of(access.tensor); };
      if (access.is_cut && std::ranges::none_of(cut_, is_known) && std::ranges::none_of(tensors, is_known))
        tensors.push_back(access.tensor);
    }
    return tensors;
  }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const at::Tensor& tensor : cut_) sum += static_cast<int64_t>(tensor.nbytes());
    return sum;
  }

  ChainSizes sizes_;
  std::vector<RowByRow> members_;
  std::vector<Access> accesses_;
  std::vector<at::Tensor> cut_;  // one for each storage
  std::size_t segment_ = 0;
  int64_t rows_ = 0;
};

void take_over(std::size_t first, const Chain& chain, BitexactKernels& kernels) {
  if (!chain.pays()) return;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    BitexactKernel& kernel = kernels.of_call[first + i];
    kernel.run = i == 0 ? chain.run() : [] {};
    kernel.together = static_cast<std::ptrdiff_t>(first);
    kernel.in_chain = true;
    kernel.pass = nullptr;
  }
  kernels.chains.emplace_back(first, first + chain.size() - 1);
}

}  // namespace

void find_chains(const std::vector<OpCall>& calls, BitexactKernels& kernels, const ChainSizes& sizes) {
  if (!kernels.may_chain) return;
  Chain chain(sizes);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const RowByRow& work = kernels.of_call[i].by_rows;
    if (chain.add(calls[i], work)) continue;
    take_over(i - chain.size(), chain, kernels);
    chain = Chain(sizes);
    chain.add(calls[i], work);
  }
  take_over(calls.size() - chain.size(), chain, kernels);
  for (BitexactKernel& kernel : kernels.of_call) kernel.by_rows = {};
}

void find_chains(const std::vector<OpCall>& calls, BitexactKernels& kernels) { find_chains(calls, kernels, {}); }

}  // namespace duet
