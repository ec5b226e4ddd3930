#include "distributed/detail/gradient_reducer.h"
#include <algorithm>
#include <iterator>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include "base/detail/tensor_handle.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "distributed/detail/collective_ops.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

struct GradientReducer::Entry {
  std::string name;
  at::Tensor parameter;
  std::size_t bucket = 0;
  at::Tensor view{};  // its place in the bucket; undefined: it does not train
  // Holds the hook below. The kind of pointer depends on LibTorch's version.
  decltype(torch::autograd::impl::grad_accumulator(parameter)) accumulator{};
  std::uintptr_t hook = 0;
  bool ready = false;
  int64_t touches = 0;  // additions to it in this backward
  int64_t usual = 0;    // in those before; 0: not known yet
  bool unused = false;  // on every rank, as the first step found
};

struct GradientReducer::Bucket {
  at::Tensor flat;
  std::vector<std::size_t> entries;
  int64_t bytes = 0;
  std::size_t waiting = 0;  // entries that are not ready
};

// Runs when autograd has added to a parameter's gradient: once in a backward, or more often where a node runs a
// backward of its own (checkpointing) for a parameter that others use too.
class GradientReducer::ReadyHook : public torch::autograd::FunctionPostHook {
 public:
  ReadyHook(GradientReducer& reducer, std::size_t entry) : reducer_(reducer), entry_(entry) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    if (reducer_.armed_) reducer_.touched(entry_);
    return outputs;
  }

 private:
  GradientReducer& reducer_;
  std::size_t entry_;
};

namespace {

// Dense in the parameter's own order of dimensions where it has one (channels last), as a gradient of autograd's. Those
// of dimensions of one element say nothing.
c10::DimVector strides_of_gradient(const at::Tensor& parameter) {
  c10::DimVector strides = c10::contiguous_strides(parameter.sizes());
  if (!parameter.is_non_overlapping_and_dense() || parameter.is_contiguous()) return strides;
  for (int64_t dim = 0; dim < parameter.dim(); ++dim) {
    if (parameter.size(dim) != 1) strides[dim] = parameter.stride(dim);
  }
  return strides;
}

}  // namespace

GradientReducer::GradientReducer(const NamedTensors& parameters, std::shared_ptr<Communicator> communicator,
                                 const DistributedOptions& options)
    : communicator_(std::move(communicator)), options_(options) {
  for (const auto& [name, parameter] : parameters) entries_.push_back({.name = name, .parameter = parameter});
}

GradientReducer::~GradientReducer() { remove_hooks(); }

void GradientReducer::prepare() {
  const bool same = !buckets_.empty() && std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.view.defined() == entry.parameter.requires_grad() &&
           (!entry.view.defined() || entry.view.strides() == at::IntArrayRef(strides_of_gradient(entry.parameter)));
  });
  const bool asked = std::exchange(rechecks_, false);
  follow_stream();
  if (!same) return make_buckets();
  if (asked) check_same_buckets();  // the captured steps hold the buckets that are there
}

uint64_t GradientReducer::layout() const {
  uint64_t hash = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const at::Tensor& parameter = entries_[i].parameter;
    hash = hash_with(hash, parameter.requires_grad());
    if (!parameter.requires_grad()) continue;
    for (const int64_t stride : strides_of_gradient(parameter)) hash = hash_with(hash, static_cast<uint64_t>(stride));
  }
  return hash;
}

void GradientReducer::begin() {
  for (Entry& entry : entries_) {
    entry.ready = false;
    entry.touches = 0;
  }
  for (Bucket& bucket : buckets_) bucket.waiting = bucket.entries.size();
  started_ = 0;
  armed_ = false;
}

// By dtype, in reverse order of registration. The layout follows from the parameters alone, so a resumed run sums in
// the same order.
void GradientReducer::make_buckets() {
  buckets_.clear();
  std::map<at::ScalarType, std::size_t> open;  // the bucket that each dtype fills
  for (std::size_t i = entries_.size(); i-- > 0;) {
    Entry& entry = entries_[i];
    entry.view = at::Tensor();
    if (!entry.parameter.requires_grad()) continue;
    const auto [slot, is_new] = open.try_emplace(entry.parameter.scalar_type(), buckets_.size());
    const int64_t limit = slot->second == 0 ? options_.first_bucket_bytes : options_.bucket_bytes;
    if (!is_new && buckets_[slot->second].bytes >= limit) slot->second = buckets_.size();
    if (slot->second == buckets_.size()) buckets_.emplace_back();
    entry.bucket = slot->second;
    buckets_[entry.bucket].entries.push_back(i);
    buckets_[entry.bucket].bytes += static_cast<int64_t>(entry.parameter.nbytes());
  }
  place_buckets();
  check_same_buckets();
  add_hooks();
}

// In memory for all parameters that is kept: those that train may change and change back, and a step that was captured
// before sums at the places of then.
void GradientReducer::place_buckets() {
  const at::NoGradGuard no_grad;
  constexpr int64_t kAlignment = 64;  // bytes, as of memory of its own
  const auto padded = [](const at::Tensor& parameter, int64_t count) {
    const int64_t step = kAlignment / static_cast<int64_t>(parameter.element_size());
    return (count + step - 1) / step * step;
  };
  std::map<at::ScalarType, int64_t> needed, taken;
  for (const Entry& entry : entries_)
    needed[entry.parameter.scalar_type()] += padded(entry.parameter, entry.parameter.numel());
  for (Bucket& bucket : buckets_) {
    const at::Tensor& first = entries_[bucket.entries.front()].parameter;
    at::Tensor& memory = memory_[first.scalar_type()];
    const int64_t size = needed[first.scalar_type()];
    if (!memory.defined() || memory.numel() < size) memory = at::zeros({size}, first.options().requires_grad(false));
    int64_t count = 0;
    for (const std::size_t i : bucket.entries) count += entries_[i].parameter.numel();
    int64_t& start = taken[first.scalar_type()];
    bucket.flat = memory.narrow(0, start, count);
    start += padded(first, count);
    int64_t offset = 0;
    for (const std::size_t i : bucket.entries) {
      Entry& entry = entries_[i];
      entry.view = bucket.flat.as_strided(entry.parameter.sizes(), strides_of_gradient(entry.parameter),
                                          bucket.flat.storage_offset() + offset);
      offset += entry.parameter.numel();
    }
  }
}

// Buckets of different sizes would end the processes within Gloo.
void GradientReducer::check_same_buckets() const {
  communicator_->report(
      "agreement on what trains");  // a rank that comes here alone waits for the others until the timeout
  std::string own;
  for (const Entry& entry : entries_)
    own += entry.view.defined() ? c10::str(entry.name, ": trains, strides ", entry.view.strides(), "\n")
                                : entry.name + ": frozen\n";
  check_same_on_all_ranks<ConfigError>(*communicator_, own, [](const RankDifference& found) {
    return c10::str("[Distributed] rank ", found.rank, " trains other parameters than rank 0 (", found.there,
                    "; on rank 0 ", found.on_first, "), expected the same everywhere; call requires_grad_(), and ",
                    "to() for another memory format, on all ranks at the same step");
  });
  communicator_->report("step");
}

void GradientReducer::add_hooks() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.accumulator || !entry.view.defined()) continue;
    entry.accumulator = torch::autograd::impl::grad_accumulator(entry.parameter);
    entry.hook = entry.accumulator->add_post_hook(std::make_unique<ReadyHook>(*this, i));
  }
}

void GradientReducer::remove_hooks() {
  for (Entry& entry : entries_) {
    if (entry.accumulator) entry.accumulator->del_post_hook(entry.hook);
    entry.accumulator = nullptr;
  }
}

// Autograd's nodes belong to the stream that they are made on. Where steps have moved to another one, from eager mode
// to graph mode, backward would go back and forth between the two.
void GradientReducer::follow_stream() {
  const c10::Device device = entries_.front().parameter.device();
  const c10::Stream now = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (stream_ == now) return;
  stream_ = now;
  remove_hooks();
  add_hooks();
}

// Only a backward tells how often it comes here: what is not known yet is taken at its end, so the first one starts
// nothing.
void GradientReducer::touched(std::size_t index) {
  Entry& entry = entries_[index];
  if (!entry.view.defined() || !entry.parameter.grad().defined()) return;
  if (++entry.touches < entry.usual || entry.usual == 0) return;
  if (entry.ready && entry.bucket < started_) {
    throw ConfigError(c10::str("[Distributed] autograd added to the gradient of '", entry.name, "' ", entry.touches,
                               " times in one backward on rank ", communicator_->rank(), ", never more than ",
                               entry.usual, " times in those before, after which it was sent, expected no more in any ",
                               "step; checkpoint the same modules every time"));
  }
  take(index);
  start_full_buckets();
}

void GradientReducer::hand_out(const Entry& entry) {
  at::Tensor& gradient = entry.parameter.mutable_grad();
  if (entry.unused) {
    gradient = at::Tensor();
  } else if (!gradient.defined() || !lies_over(gradient, entry.view)) {
    gradient = handle_of(entry.view);
  }
}

// Its place in the bucket becomes the gradient. Autograd may still add to it there until the bucket is started.
void GradientReducer::take(std::size_t index) {
  const at::NoGradGuard no_grad;
  Entry& entry = entries_[index];
  const at::Tensor& gradient = entry.parameter.grad();
  if (gradient.layout() != at::kStrided) {
    throw ConfigError(c10::str("[TrainStep] the gradient of '", entry.name, "' is ", gradient.layout(),
                               ", expected a dense one; make its ", "Embedding without sparse"));
  }
  if (entry.unused) {
    throw ConfigError(c10::str("[Distributed] parameter '", entry.name, "' got its first gradient on rank ",
                               communicator_->rank(),
                               " after no rank gave it one in the first step, where the ranks agreed to leave it "
                               "alone; let every step use it, ",
                               "or freeze it with requires_grad_(false)"));
  }
  if (!lies_over(gradient, entry.view)) entry.view.copy_(gradient);
  hand_out(entry);
  if (!std::exchange(entry.ready, true)) --buckets_[entry.bucket].waiting;
}

void GradientReducer::start_full_buckets() {
  for (; started_ < buckets_.size() && buckets_[started_].waiting == 0; ++started_) {
    start_sum_(buckets_[started_].flat, *communicator_);
  }
}

void GradientReducer::finish() {
  const bool has_batch = std::exchange(armed_, false);
  const at::NoGradGuard no_grad;
  fill_missing(has_batch);
  for (Entry& entry : entries_) entry.usual = std::max(entry.usual, entry.touches);
  for (Bucket& bucket : buckets_) finish_(bucket.flat, *communicator_);
  for (Entry& entry : entries_) {
    if (entry.view.defined()) hand_out(entry);
  }
}

// A gradient that the last micro-batch did not touch is there from an earlier one, or missing; a missing one is zero to
// the others.
void GradientReducer::fill_missing(bool has_batch) {
  std::vector<std::size_t> missing;
  for (std::size_t i = entries_.size(); i-- > 0;) {
    Entry& entry = entries_[i];
    if (!entry.view.defined() || entry.ready) continue;
    if (entry.parameter.grad().defined()) {
      take(i);
      continue;
    }
    if (has_batch && !entry.unused) missing.push_back(i);
    entry.view.zero_();
    entry.ready = true;
    --buckets_[entry.bucket].waiting;
  }
  if (agreed_on_unused_ && !missing.empty() && !options_.find_unused_parameters)
    refuse_missing(missing, static_cast<std::size_t>(communicator_->rank()));
  start_full_buckets();
  if (!agreed_on_unused_) agree_on_unused(missing, has_batch);
}

std::string GradientReducer::names_of(const std::vector<std::size_t>& entries) const {
  std::vector<std::string> names;
  for (const std::size_t i : entries) names.push_back("'" + entries_[i].name + "'");
  return join_first(std::move(names));
}

// The other ranks may have one: to ask them in every step would cost a wait.
void GradientReducer::refuse_missing(const std::vector<std::size_t>& missing, std::size_t rank) const {
  throw ConfigError(c10::str("[Distributed] ", names_of(missing), " got no gradient in this step on rank ", rank,
                             ", expected one in every step on all ranks or none; use it in every forward, freeze it "
                             "with requires_grad_(false), or set find_unused_parameters to count a missing gradient as "
                             "zero"));
}

// Once, at the first step: a parameter that no rank uses stays without a gradient, as in one process.
void GradientReducer::agree_on_unused(const std::vector<std::size_t>& missing, bool has_batch) {
  std::string own(entries_.size(), has_batch ? '1' : '-');
  for (const std::size_t i : missing) own[i] = '0';
  const std::vector<std::string> all = communicator_->all_gather(own);
  std::vector<std::size_t> partly, unused;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].view.defined()) continue;
    const bool some = std::ranges::any_of(all, [i](const std::string& rank) { return rank[i] == '1'; });
    const bool lacking = std::ranges::any_of(all, [i](const std::string& rank) { return rank[i] == '0'; });
    if (some && lacking) partly.push_back(i);
    entries_[i].unused = !some && !options_.find_unused_parameters;
    if (!some) unused.push_back(i);
  }
  agreed_on_unused_ = true;
  for (std::size_t rank = 0; rank < all.size() && !options_.find_unused_parameters; ++rank) {
    std::vector<std::size_t> here;
    std::ranges::copy_if(partly, std::back_inserter(here), [&](std::size_t i) { return all[rank][i] == '0'; });
    if (!here.empty()) refuse_missing(here, rank);
  }
  if (!unused.empty() && communicator_->is_main()) {
    const char* const fate = options_.find_unused_parameters ? "it counts as zero" : "they stay as they are";
    log_warning(c10::str("[Distributed] no rank gives these parameters a gradient in the first step, ", fate, ": ",
                         names_of(unused), "; freeze those that never train with requires_grad_(false) to save their ",
                         "communication"));
  }
}

}  // namespace duet
