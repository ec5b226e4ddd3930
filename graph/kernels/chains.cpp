#include "graph/kernels/chains.h"
#include <algorithm>
#include <numeric>
#include <vector>
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
    if (!tensor.defined()) return;
    const bool is_cut = std::ranges::any_of(work.cut, [&](const at::Tensor& cut) { return cut.is_same(tensor); });
    all.push_back({tensor, is_cut, is_written});
  };
  for (const c10::IValue& argument : call.arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      add(argument.toTensor(), call.writes(argument.toTensor()));
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) add(tensor, call.writes(tensor));
    }
  }
  for (const at::Tensor& result : call.results) add(result, /*is_written=*/true);
  return all;
}

// Some ops one after the other.
class Chain {
 public:
  explicit Chain(const ChainSizes& sizes) : sizes_(sizes) {}

  bool takes(const OpCall& call, const RowByRow& work) const {
    if (work.rows == 0 || (work.before && !members_.empty())) return false;
    if (!members_.empty() && (call.segment != segment_ || !has_common_rows(work.rows))) return false;
    bool shares = members_.empty();
    for (const Access& mine : accesses_of(call, work)) {
      for (const Access& other : accesses_) {
        if (!mine.is_of(other)) continue;
        const bool alike = mine.is_cut && other.is_cut && mine.is_in_the_same_place(other);
        shares = shares || alike;
        const bool is_apart = !mine.is_cut && !other.is_cut && !mine.is_written && !other.is_written;
        if (!alike && !is_apart) return false;
      }
    }
    return shares;
  }

  void add(const OpCall& call, const RowByRow& work) {
    segment_ = call.segment;
    rows_ = std::gcd(rows_, work.rows);
    for (const Access& access : accesses_of(call, work)) {
      const bool known = std::ranges::any_of(accesses_, [&](const Access& other) { return other.is_of(access); });
      if (access.is_cut && !known) bytes_ += static_cast<int64_t>(access.tensor.nbytes());
      accesses_.push_back(access);
    }
    members_.push_back(work);
  }

  std::size_t size() const { return members_.size(); }
  bool pays() const { return size() > 1 && bytes_ > sizes_.cached; }

  std::function<void()> run() const {
    constexpr int64_t kVectors = 64;  // elements, so that few vectors are cut
    const int64_t fitting = std::max<int64_t>(1, sizes_.tile / std::max<int64_t>(1, bytes_ / rows_));
    const int64_t tile = fitting < kVectors ? fitting : fitting / kVectors * kVectors;
    return [members = members_, rows = rows_, tile, elements = bytes_ / static_cast<int64_t>(sizeof(float))] {
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
  bool has_common_rows(int64_t rows) const {
    constexpr int64_t kFewest = 8;  // or a tile is no smaller than all of it
    return std::gcd(rows_, rows) >= kFewest;
  }

  ChainSizes sizes_;
  std::vector<RowByRow> members_;
  std::vector<Access> accesses_;
  std::size_t segment_ = 0;
  int64_t rows_ = 0;
  int64_t bytes_ = 0;  // of what is cut
};

void take_over(std::size_t first, const Chain& chain, BitexactKernels& kernels) {
  if (!chain.pays()) return;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    BitexactKernel& kernel = kernels.of_call[first + i];
    kernel.run = i == 0 ? chain.run() : [] {};
    kernel.name = "in a chain";
    kernel.together = static_cast<std::ptrdiff_t>(first);
    kernel.in_chain = true;
    kernel.pass = nullptr;
  }
  kernels.chains.emplace_back(first, first + chain.size() - 1);
}

}  // namespace

void find_chains(const std::vector<OpCall>& calls, BitexactKernels& kernels, const ChainSizes& sizes) {
  Chain chain(sizes);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const RowByRow& work = kernels.of_call[i].by_rows;
    if (!chain.takes(calls[i], work)) {
      take_over(i - chain.size(), chain, kernels);
      chain = Chain(sizes);
    }
    if (chain.takes(calls[i], work)) chain.add(calls[i], work);
  }
  take_over(calls.size() - chain.size(), chain, kernels);
}

void find_chains(const std::vector<OpCall>& calls, BitexactKernels& kernels) { find_chains(calls, kernels, {}); }

}  // namespace duet
