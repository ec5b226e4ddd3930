#include <duet/hooks/nvtx_ranges.h>

#include <c10/util/StringUtil.h>
#include <duet/core/error.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <memory>
#include <string_view>

namespace duet {

namespace {

const torch::profiler::impl::ProfilerStubs& stubs() { return *torch::profiler::impl::cudaStubs(); }

// Ranges of hook points that are open in this thread.
thread_local int open_points = 0;

struct Point : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> begin_point(const at::RecordFunction& span) {
  if (std::string_view(span.name()).substr(0, 5) != "hook:") return nullptr;
  stubs().rangePush(span.name());
  ++open_points;
  return std::make_unique<Point>();
}

void end_open_point() {
  if (open_points == 0) return;
  --open_points;
  stubs().rangePop();
}

void end_point(const at::RecordFunction& /*span*/, at::ObserverContext* point) {
  if (point != nullptr) end_open_point();
}

}  // namespace

NvtxRanges::NvtxRanges() {
  require<ConfigError>(stubs().enabled(),
                       "[ProfilerHook] found nvtx with a LibTorch that has no CUDA, expected one that has; leave "
                       "nvtx out, or use a LibTorch with CUDA");
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&begin_point, &end_point).scopes({at::RecordScope::USER_SCOPE}));
}

NvtxRanges::~NvtxRanges() {
  end_update();
  at::removeCallback(callback_);
}

void NvtxRanges::begin_update(int64_t update) {
  end_update();
  end_open_point();
  stubs().rangePush(c10::str("update ", update).c_str());
  in_update_ = true;
}

void NvtxRanges::end_update() {
  if (!in_update_) return;
  in_update_ = false;
  stubs().rangePop();
}

}  // namespace duet
