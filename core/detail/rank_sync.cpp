#include "core/detail/rank_sync.h"
#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/run_state.h"
#include "distributed/detail/connect.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

RankSync::RankSync(TrainStep& step, TrainContext& context)
    : step_(step), context_(context), ranks_(step.communicator()) {
  warn_if_alone();
}

// Nobody looks for signals while it waits here: what a rank has said of itself holds until all have decided by it. The
// wait ends as soon as the others come, who look where they wait for data.
StepDecision RankSync::exchange(StepReport report) {
  report.stops = !context_.control.stop_reason.empty();
  report.stop_outcome = context_.control.stop_outcome;
  report.proposes_save = context_.control.save_proposed;
  return is_single() ? decide({&report, 1}) : decide(ranks_.gather(report));
}

StepDecision RankSync::decide(c10::ArrayRef<StepReport> all) const {
  const auto own = static_cast<std::size_t>(ranks_.rank());
  StepDecision decision;
  bool unknown_epoch = false;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const StepReport& said = all[rank];
    if (said.place != all[own].place) {
      throw ConfigError(c10::str("[Distributed] rank ", rank, " is at another place of the loop than rank ",
                                 ranks_.rank(), " after step ", context_.progress.step,
                                 ", expected all at the same; give every rank ",
                                 "the same limits, intervals, validation data and hooks"));
    }
    if (said.stops && decision.stopping_rank < 0) {
      decision.stopping_rank = static_cast<int64_t>(rank);
      decision.stop_outcome = said.stop_outcome;
    }
    decision.saves = decision.saves || said.proposes_save;
    decision.has_data = decision.has_data || said.micro_batches > 0;
    decision.same_count =
        decision.same_count && said.micro_batches - said.weightless == all[0].micro_batches - all[0].weightless;
    decision.data_seconds = std::max(decision.data_seconds, static_cast<double>(said.data_seconds));
    decision.total_weight += said.weight;
    decision.samples += said.samples;
    decision.same_layout = decision.same_layout && said.fingerprint == all[0].fingerprint;
    decision.epoch_steps = std::max(decision.epoch_steps, said.epoch_steps);
    unknown_epoch = unknown_epoch || said.epoch_steps == 0;
  }
  if (unknown_epoch) decision.epoch_steps = 0;
  return decision;
}

StepDecision RankSync::before_step(MicroBatches& own, bool stops_count) {
  own.samples_elsewhere = 0;
  const int64_t samples = own.samples();
  StepDecision decision = exchange({.place = SyncPlace::kBeforeStep,
                                    .data_seconds = static_cast<float>(context_.step.data_seconds),
                                    .micro_batches = static_cast<int32_t>(own.fetched()),
                                    .weightless = static_cast<int32_t>(own.weightless),
                                    .weight = own.total,
                                    .samples = samples,
                                    .fingerprint = step_.fingerprint()});
  if (!stops_count) decision.stopping_rank = -1;  // the step is still made
  if (decision.stopping_rank >= 0) {
    adopt_stop(decision);
    return decision;
  }
  if (decision.saves) {
    context_.control.save_proposed = false;
    context_.control.request_save();
  }
  require<ConfigError>(
      decision.same_count || !step_.options().distributed.sync_batchnorm,
      c10::str("[Distributed] the ranks have different numbers of micro-batches for step ", context_.progress.step,
               ", expected as many on all with sync_batchnorm; set ", "drop_last: true for the data"));
  context_.step.data_seconds = decision.data_seconds;
  own.total = decision.total_weight;
  own.samples_elsewhere = decision.samples - samples;
  same_layout_ = decision.same_layout || !decision.has_data;
  if (!same_layout_) step_.recheck_ranks();
  if (decision.has_data) warn_of_same_batches(own);
  return decision;
}

void RankSync::adopt_stop(const StepDecision& decision) {
  stop_agreed_ = true;
  const std::string reason = ranks_.broadcast(context_.control.stop_reason, decision.stopping_rank);
  if (context_.control.stop_reason.empty())
    context_.control.request_stop(c10::str("rank ", decision.stopping_rank, ": ", reason));
  context_.control.stop_outcome = decision.stop_outcome;
}

void RankSync::agree_on_stop() {
  if (stop_agreed_ || is_single()) return;
  const StepDecision decision = exchange({.place = SyncPlace::kBetweenSteps});
  if (decision.stopping_rank >= 0) adopt_stop(decision);
}

// Hooks may change hyper-parameters until the step begins, so a path is known only then: after the report.
StepPath RankSync::common_path(StepPath own, bool ranks_need_same_path) {
  if (!same_layout_) return StepPath::kEager;
  if (!ranks_need_same_path) return own;
  const std::vector<StepPath> all = ranks_.gather(own);
  const auto each = [&all](auto is) { return std::all_of(all.begin(), all.end(), is); };
  if (each([own](StepPath path) { return path == own; })) return own;
  // Where one rank has a reason to compare, all do: else it would never come to it.
  const bool replays = each([](StepPath path) { return path != StepPath::kEager && path != StepPath::kRecord; });
  return replays ? StepPath::kReplayAndCompare : StepPath::kEager;
}

void RankSync::start_run() {
  stop_agreed_ = false;
  ranks_.set_running(false);
}

int64_t RankSync::agree_on_epoch(int64_t steps) {
  ranks_.set_running(false);  // a rank may have prepared for long
  return exchange({.place = SyncPlace::kAtStart, .epoch_steps = steps}).epoch_steps;
}

namespace {

constexpr const char* kNotShared = "not shared";

std::string part(int64_t rank, int64_t world_size) { return c10::str("that of rank ", rank, " of ", world_size); }

// Every part once; which rank takes which does not matter.
void check_parts(const std::vector<std::string>& parts, const std::string& what) {
  const auto count = static_cast<int64_t>(parts.size());
  std::set<std::string> open;
  for (int64_t rank = 0; rank < count; ++rank) open.insert(part(rank, count));
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (open.erase(parts[rank]) > 0) continue;
    throw ConfigError(c10::str("[Distributed] the part of the ", what, " data that rank ", rank, " reads is: ",
                               parts[rank], ", expected one of ", count, " that no other rank reads; leave the ",
                               "sampler to the DataLoader, or give every rank a DistributedSampler of its own rank()"));
  }
}

}  // namespace

void RankSync::check_data(const DataSource& data, const std::string& what) {
  if (is_single()) return warn_if_alone();
  exchange({.place = SyncPlace::kBeforeData});
  const std::optional<DataShard> own = data.shard();
  std::vector<std::string> parts = ranks_.all_gather(own ? part(own->rank, own->world_size) : kNotShared);
  if (std::all_of(parts.begin(), parts.end(), [](const std::string& text) { return text == kNotShared; })) return;
  check_parts(parts, what);
  check_same_on_all_ranks<ConfigError>(ranks_, own->order, [&](const RankDifference& found) {
    return c10::str("[Distributed] rank ", found.rank, " reads the ", what, " data otherwise than rank 0 (",
                    found.there, "; on rank 0 ", found.on_first, "), expected the same samples in the same ",
                    "order, of which each rank takes its part; give all ranks the same dataset, seed and ",
                    "batch size, and load the same checkpoint on all");
  });
}

// Once: it may have been made before the ranks were connected, or when nobody held them.
void RankSync::warn_if_alone() {
  if (!is_single() || !were_ranks_connected() || std::exchange(warned_that_alone_, true)) return;
  log_warning(
      "[Distributed] this trainer is alone on this rank, though init_distributed() has connected several. Make options "
      "and trainers while what it returns is held");
}

// Once: whoever forgets to share out the data trains all ranks on the same.
void RankSync::warn_of_same_batches(const MicroBatches& own) {
  if (std::exchange(compared_first_batches_, true) || ranks_.world_size() == 1) return;
  if (context_.data != nullptr && context_.data->shard()) return;
  std::string hashes;
  if (!own.batches.empty()) {
    for (const auto& [name, tensor] : own.batches.front().items()) hashes += name + " " + bits_hash(tensor) + "\n";
  }
  const std::vector<std::string> all = ranks_.all_gather(hashes);
  if (first_difference(all) || all[0].empty() || !ranks_.is_main()) return;
  log_warning(
      "[Distributed] all ranks begin with the same micro-batch: they train on the same samples, unless that is "
      "meant. Give every rank its part of the data, a DataLoader by means of a DistributedSampler");
}

void RankSync::end_run() {
  if (is_single()) return;
  ranks_.use_start_timeout(true);
  report("end");
  ranks_.barrier();
  warn_of_drift();
  ranks_.use_start_timeout(false);
}

void RankSync::warn_of_drift() {
  if (ranks_.world_size() == 1 || warned_of_drift_) return;
  std::string lines;
  for (const auto& [name, tensor] : step_.task().named_parameters()) lines += name + " " + bits_hash(tensor) + "\n";
  // The lines are long, and nearly always the same.
  if (!first_difference(ranks_.all_gather(xxh3_hex(lines.data(), lines.size())))) return;
  const std::optional<RankDifference> found = first_difference(ranks_.all_gather(lines));
  if (!found) return;
  warned_of_drift_ = true;
  if (!ranks_.is_main()) return;
  log_warning(c10::str("[Distributed] after step ", context_.progress.step, " parameter '",
                       found->there.substr(0, found->there.rfind(' ')), "' of rank ", found->rank,
                       " has other values than that of rank 0: something but the steps writes to it, or the ranks' ",
                       "processors compute differently. Let hooks write the same on all ranks"));
}

}  // namespace duet
