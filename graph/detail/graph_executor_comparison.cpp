#include <algorithm>
#include <optional>
#include <string>
#include <vector>
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

// "'a', 'b', 'c' and 9 more".
std::string first_names(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i > 0 ? ", '" : "'") + names[i] + "'";
  return names.size() > kShown ? c10::str(text, " and ", names.size() - kShown, " more") : text;
}

std::string reason_of(const ParityResult& result) {
  if (!result.replay_error.empty()) return "its replay failed (" + result.replay_error + "), its eager run did not";
  return "its replay differs from its eager run, first in '" + result.differing.front() +
         "'. Usually the step depends on a host value that changes (a captured number, a replaced tensor): keep it in "
         "a "
         "tensor, or name it in Task::graph_key. If it does not, an op is replayed wrongly: set graph.fallback to "
         "eager "
         "and report it";
}

}  // namespace

// The replay is another program afterwards, which is compared: where comparisons wait, so does this.
void GraphExecutor::try_kernels(SignatureEntry& entry, const StepObserver& observer) {
  if (entry.report.replays < fuse_after_ || observer.postpones_checks()) return;
  try {
    entry.step->try_kernels();
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
  if (!result.replaced_gradient.empty()) {
    count(entry.report.eager_steps, eager_steps_);
    note_replaced_gradient(entry, result.replaced_gradient);
    entry.verify.put_off();
    return result.output;
  }
  if (!result.same_host_code) {
    count(entry.report.eager_steps, eager_steps_);
    note_other_host_code(entry);
    return result.output;
  }
  if (result.replayed) {
    count(entry.report.replays, replays_);
    note_unchecked(entry);
  } else {
    entry.check.verified();
  }
  if (!result.compared) {
    if (!result.replayed) count(entry.report.eager_steps, eager_steps_);
    entry.verify.put_off();
    return result.output;
  }
  if (!result.unstable_op.empty()) {
    note_unstable_kernels(entry, result);
    return result.output;
  }
  if (result.differing.empty()) {
    count(entry.report.replays, replays_);
    entry.verify.verified();
    return result.output;
  }
  if (!result.kernel.empty()) {
    note_kernel_fault(entry, result);
    return result.output;
  }
  fall_back(entry, reason_of(result));
  count(entry.report.eager_steps, eager_steps_);
  const int64_t doubtful = result.replay_error.empty() ? entry.verify.doubtful() : 0;  // no other replay has failed
  throw_if_doubtful(entry, doubtful, entry.verify.doubtful_since());
  return result.output;
}

// The step ran eager. Its replay was as right: where it differs, eager may differ from eager.
void GraphExecutor::note_unstable_kernels(SignatureEntry& entry, const ParityResult& result) {
  count(entry.report.eager_steps, eager_steps_);
  entry.verify.verified();
  if (++entry.report.nondeterministic > 1) return;
  log_warning(c10::str(who(entry), " is not deterministic: run op by op from one state, ", result.unstable_op,
                       " gives other bits from run to run, and with them ", first_names(result.differing),
                       ". Replays go on; a wrong one would not be found in these tensors. For kernels that can be "
                       "compared: at::globalContext().setDeterministicAlgorithms(true, false), in Python "
                       "torch.use_deterministic_algorithms(True); without comparisons: graph.verify_interval 0"));
}

// The step ran eager and is right; LibTorch's kernels would have given the same. So only the last bits of steps before
// are in doubt, and training goes on.
void GraphExecutor::note_kernel_fault(SignatureEntry& entry, const ParityResult& result) {
  switch_off(*result.pass);
  entry.report.reason = c10::str("duet's kernel, ", result.kernel, ", gives other bits than LibTorch's, first in '",
                                 result.differing.front(), "'");
  const std::string what =
      c10::str(who(entry), ": ", entry.report.reason, ". duet's kernels for ", result.pass->name,
               " are switched off in this process, LibTorch's run instead. Up to ", entry.verify.doubtful(),
               " steps since the last check may differ from eager ones in their last bits. Please report it; ",
               "graph: {fuse: off} does without such kernels");
  count(entry.report.eager_steps, eager_steps_);
  entry.verify.restart();
  if (fallback_ == Fallback::kStrict) throw GraphError(what);
  log_warning(what);
}

void GraphExecutor::note_other_host_code(SignatureEntry& entry) {
  if (!entry.step->check().host_used_rng()) return note_difference(entry);
  const int64_t unchecked = entry.check.unchecked();
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
