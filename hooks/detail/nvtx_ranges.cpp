#include "hooks/detail/nvtx_ranges.h"

#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/detail/hook_span.h"
#include <torch/csrc/profiler/stubs/base.h>

#include <memory>
#include <string_view>

namespace duet {

namespace {

const torch::profiler::impl::ProfilerStubs& stubs() { return *torch::profiler::impl::cudaStubs(); }

struct Point : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> begin_point(const at::RecordFunction& span) {
  if (std::string_view(span.name()).substr(0, 5) != "hook:") return nullptr;
  stubs().rangePush(span.name());
  return std::make_unique<Point>();
}

void end_point(const at::RecordFunction& /*span*/, at::ObserverContext* point) {
  if (point != nullptr) stubs().rangePop();
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
  end_step();
  at::removeCallback(callback_);
}

void NvtxRanges::begin_step(int64_t step) {
  end_step();
  end_hook_span();
  stubs().rangePush(c10::str("step ", step).c_str());
  in_step_ = true;
}

void NvtxRanges::end_step() {
  if (!in_step_) return;
  in_step_ = false;
  end_hook_span();
  stubs().rangePop();
}

}  // namespace duet
