#include <algorithm>
#include <optional>
#include <string>
#include <c10/util/StringUtil.h>
#include "base/detail/step_lock.h"
#include "base/detail/stopwatch.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "graph/detail/graph_executor.h"
#include "graph/guards/parity_guard.h"
#include "graph/kernels/bitexact_kernel.h"

// GraphExecutor's steps that run both ways, and what becomes of a difference.

namespace duet {

namespace {

std::string reason_of(const ParityResult& result) {
  if (!result.replay_error.empty()) return "its replay failed (" + result.replay_error + "), its eager run did not";
  return "its replay differs from its eager run, first in '" + result.differing.front() +
         "'. Keep a host value that changes in a tensor, or name it in Task::graph_key; if there is none, an op is "
         "replayed wrongly: set graph.fallback to eager and report it";
}

}  // namespace

// The replay is another program afterwards, which is compared: where comparisons wait, so does this.
void GraphExecutor::try_kernels(SignatureEntry& entry, const StepObserver& observer) {
  if (entry.report.replays < fuse_after_ || observer.postpones_checks()) return;
  try {
    entry.step->segments().try_kernels();
    entry.verify.program_changed();
    cache_.evict(entry);
  } catch (const std::exception& error) {  // the program is of no use any more
    log_warning(who(entry) + ": its kernels could not be tried (" + first_line(error) + "); it is captured again");
    entry.drop();
  }
}

StepResult GraphExecutor::replay_and_compare(SignatureEntry& entry, const MicroBatches& micro_batches,
                                             StepObserver& observer) {
  std::optional<StepLock::Alone> alone;  // other trainers draw from the device's generator, which is put back here
  if (method_.device != nullptr) alone.emplace();
  const Stopwatch time;
  ParityResult result = run_both_ways(*entry.step, step_, micro_batches, observer);
  entry.report.check_seconds += std::max(0.0, time.seconds() - entry.check.replay_seconds());
  const bool replayed = result.replayed || (result.compared && result.differing.empty());
  replayed ? count_replay(entry) : count_eager(entry);
  if (!result.replaced_gradient.empty()) {
    note_replaced_gradient(entry, result.replaced_gradient);
    entry.verify.put_off();
  } else if (!result.same_host_code) {
    note_other_host_code(entry);
  } else if (!result.compared) {
    result.replayed ? note_unchecked(entry) : entry.check.verified();
    entry.verify.put_off();
  } else {
    entry.check.verified();
    result.differing.empty() ? entry.verify.verified() : note_differing_replay(entry, result);
  }
  return result.output;
}

// The step ran eager.
void GraphExecutor::note_differing_replay(SignatureEntry& entry, const ParityResult& result) {
  if (!result.unstable_op.empty()) return note_unstable_kernels(entry, result);
  if (!result.kernel.empty()) return note_kernel_fault(entry, result);
  fall_back(entry, reason_of(result));
  const int64_t doubtful = result.replay_error.empty() ? entry.verify.doubtful() : 0;  // no other replay has failed
  throw_if_doubtful(entry, doubtful, entry.verify.doubtful_since());
}

// Its replay was as right: where it differs, eager may differ from eager.
void GraphExecutor::note_unstable_kernels(SignatureEntry& entry, const ParityResult& result) {
  entry.verify.verified();
  if (++entry.report.nondeterministic > 1) return;
  log_warning(c10::str(who(entry), " is not deterministic: run op by op from one state, ", result.unstable_op,
                       " gives other bits from run to run, and with them ", join_first(result.differing, 3),
                       ". Replays go on; a wrong one would not be found in these tensors. For kernels that can be "
                       "compared: at::globalContext().setDeterministicAlgorithms(true, false), in Python "
                       "torch.use_deterministic_algorithms(True); without comparisons: graph.verify_interval 0"));
}

// LibTorch's kernels would have given what the eager run gave: only the last bits of steps before are in doubt, and
// training goes on.
void GraphExecutor::note_kernel_fault(SignatureEntry& entry, const ParityResult& result) {
  switch_off(*result.pass);
  entry.report.reason = c10::str("duet's kernel, ", result.kernel, ", gives other bits than LibTorch's, first in '",
                                 result.differing.front(), "'");
  const std::string what =
      c10::str(who(entry), ": ", entry.report.reason, ". duet's kernels for ", result.pass->name,
               " are switched off in this process, LibTorch's run instead. Up to ", entry.verify.doubtful(),
               " steps since the last check may differ from eager ones in their last bits. Please report it; ",
               "graph: {fuse: off} does without such kernels");
  entry.verify.restart();
  if (fallback_ == Fallback::kStrict) throw GraphError(what);
  log_warning(what);
}

void GraphExecutor::note_other_host_code(SignatureEntry& entry) {
  if (!entry.step->check().host_used_rng()) return note_difference(entry);
  const int64_t unchecked = entry.check.unchecked();
  entry.check.differed();
  fall_back(entry, c10::str(entry.step->check().difference(), "; ", unchecked, " steps before it were not checked"));
}

void GraphExecutor::note_replaced_gradient(SignatureEntry& entry, const std::string& parameter) {
  noticed_ = noticed_ || entry.noticed;  // that something was rebound was not looked into
  entry.report.reason =
      "a hook replaces or removes the gradient of '" + parameter +
      "': such steps run op by op from there on. Change it in place (mul_, zero_) to keep them captured";
  if (told_.insert(entry.report.reason).second) log_warning(who(entry) + ": " + entry.report.reason);
}

}  // namespace duet
