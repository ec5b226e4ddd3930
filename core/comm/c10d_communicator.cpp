#include <duet/core/comm/c10d_communicator.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <duet/core/error.h>

#include <algorithm>

namespace duet {

namespace {

// What goes on here is no part of a step that is being recorded, nor of autograd.
struct PlainCalls {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_recorder{c10::DispatchKey::Fake};
};

std::string first_line_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

at::Tensor view_of(std::vector<double>& numbers) {
  return at::from_blob(numbers.data(), {static_cast<int64_t>(numbers.size())}, at::kDouble);
}

at::Tensor view_of(std::string& bytes) { return at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte); }

}  // namespace

C10dCommunicator::C10dCommunicator(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Backend> device,
                                   std::unique_ptr<PeerWatch> watch, CommunicatorTimeouts timeouts)
    : rank_(host->getRank()), world_size_(host->getSize()), host_(std::move(host)), device_(std::move(device)), watch_(std::move(watch)), timeouts_(timeouts), timeout_(timeouts.start) {}

C10dCommunicator::~C10dCommunicator() = default;

template <class Call>
auto C10dCommunicator::guarded(Call call) -> decltype(call()) {
  if (!failure_.empty()) throw PeerError(failure_);
  try {
    const PlainCalls plain;
    return call();
  } catch (const std::exception& error) {
    failure_ = watch_ ? watch_->diagnose(first_line_of(error)) : "[Communicator] a call that waits for other ranks failed: " + first_line_of(error);
    throw PeerError(failure_);
  }
}

void C10dCommunicator::wait(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) work->wait();
}

std::vector<std::vector<double>> C10dCommunicator::all_gather(const std::vector<double>& numbers) {
  return guarded([&] {
    std::vector<double> own = numbers;
    std::vector<std::vector<double>> all(static_cast<std::size_t>(world_size()), std::vector<double>(numbers.size()));
    std::vector<at::Tensor> inputs{view_of(own)};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (std::vector<double>& row : all) outputs[0].push_back(view_of(row));
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    wait(host_->allgather(outputs, inputs, options));
    return all;
  });
}

std::vector<std::string> C10dCommunicator::all_gather(const std::string& bytes) {
  const std::vector<std::vector<double>> sizes = all_gather(std::vector<double>{static_cast<double>(bytes.size())});
  double longest = 1;
  for (const auto& size : sizes) longest = std::max(longest, size.front());
  return guarded([&] {
    const auto length = static_cast<std::size_t>(longest);
    std::string own = bytes;
    own.resize(length);
    std::vector<std::string> all(sizes.size(), std::string(length, '\0'));
    std::vector<at::Tensor> inputs{view_of(own)};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (std::string& text : all) outputs[0].push_back(view_of(text));
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    wait(host_->allgather(outputs, inputs, options));
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank].resize(static_cast<std::size_t>(sizes[rank].front()));
    return all;
  });
}

std::string C10dCommunicator::broadcast(const std::string& bytes, int64_t root) {
  return guarded([&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout_;
    std::vector<double> size{static_cast<double>(bytes.size())};
    std::vector<at::Tensor> tensors{view_of(size)};
    wait(host_->broadcast(tensors, options));
    std::string text = rank() == root ? bytes : std::string(static_cast<std::size_t>(size[0]), '\0');
    if (text.empty()) return text;
    tensors = {view_of(text)};
    wait(host_->broadcast(tensors, options));
    return text;
  });
}

void C10dCommunicator::do_start_sum(const at::Tensor& values) {
  guarded([&] {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::SUM;
    options.timeout = timeout_;
    std::vector<at::Tensor> tensors{values};
    open_[values.const_data_ptr()] = device_->allreduce(tensors, options);
  });
}

void C10dCommunicator::do_start_broadcast(const at::Tensor& values, int64_t root) {
  guarded([&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout_;
    std::vector<at::Tensor> tensors{values};
    open_[values.const_data_ptr()] = device_->broadcast(tensors, options);
  });
}

void C10dCommunicator::do_finish(const at::Tensor& values) {
  guarded([&] {
    const auto open = open_.find(values.const_data_ptr());
    if (open == open_.end()) return;
    const c10::intrusive_ptr<c10d::Work> work = open->second;
    open_.erase(open);
    wait(work);
  });
}

void C10dCommunicator::report(int64_t update, const char* phase) {
  if (watch_) watch_->report(update, phase);
}

void C10dCommunicator::fail(const std::string& reason) {
  if (!failure_.empty()) return;  // the others are to blame, and know
  failure_ = "[Communicator] this rank has failed: " + reason;
  if (watch_) watch_->fail(reason.substr(0, 2000));
  // Ends the connections: who waits for this rank finds out at once, even if this process lives on.
  open_.clear();
  device_.reset();
  host_.reset();
}

}  // namespace duet
