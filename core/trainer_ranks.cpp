#include "distributed/communicator.h"
#include "core/detail/same_data.h"
#include "distributed/detail/text_difference.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "base/detail/tensor_compare.h"
#include "core/trainer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

namespace duet {

// What a trainer and those of the other ranks agree on. In one process there is nobody to ask.

void BaseTrainer::report(const char* phase) {
  if (context_.communicator != nullptr) context_.communicator->report(context_.progress.step, phase);
}

// With one seed all ranks would draw the same dropout masks.
void BaseTrainer::draw_own_numbers() { seed_all(rank_seed(default_seed(), context_.communicator->rank())); }

// What every rank brings to a meeting: where it is, whether it wants to stop, its micro-batches and their weight, how
// it would run them, and what tells the layout of its model.
struct BaseTrainer::Meeting {
  std::vector<std::vector<double>> rows;
  enum Column { kWhere, kStops, kBatches, kWeight, kPlan, kSamples, kFingerprint };
  // The first rank whose number is not 0; -1: none.
  int64_t first_with(Column column) const {
    const auto found = std::find_if(rows.begin(), rows.end(), [column](const auto& row) { return row[column] != 0; });
    return found == rows.end() ? -1 : found - rows.begin();
  }
  bool differ_in(Column column) const {
    return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row[column] != rows[0][column]; });
  }
  double sum(Column column) const {
    double sum = 0;
    for (const auto& row : rows) sum += row[column];
    return sum;
  }
  // What the ranks have together becomes known to `micro_batches`.
  void tell(MicroBatches& micro_batches) const {
    micro_batches.total = sum(kWeight);
    micro_batches.samples_elsewhere = static_cast<int64_t>(sum(kSamples)) - micro_batches.samples();
  }
};

namespace {

constexpr double kBeforeStep = 1, kBetweenSteps = 2, kAtStart = 3, kBeforeData = 4;

}  // namespace

BaseTrainer::Meeting BaseTrainer::meet(double where, const MicroBatches& micro_batches) {
  Meeting meeting;
  const double stops = context_.control.stop_reason.empty() ? 0 : 1,
               batches = static_cast<double>(micro_batches.fetched());
  const bool runs = where == kBeforeStep;
  const double plan = runs ? next_plan(micro_batches) : 0, fingerprint = runs ? rule_->fingerprint() : 0;
  meeting.rows = context_.communicator->all_gather(std::vector<double>{
      where, stops, batches, micro_batches.total, plan, static_cast<double>(micro_batches.samples()), fingerprint});
  for (std::size_t rank = 0; rank < meeting.rows.size(); ++rank) {
    if (meeting.rows[rank][Meeting::kWhere] == where) continue;
    throw ConfigError(
        c10::str("[Distributed] rank ", rank, " is at another place of the loop than rank ",
                 context_.communicator->rank(), " after step ", context_.progress.step,
                 ", expected all at the same; give every rank the same limits, intervals, validation data and hooks"));
  }
  return meeting;
}

// All ranks stop for the first of them that wants to, and for its reason.
void BaseTrainer::adopt_stop(int64_t rank) {
  stop_agreed_ = true;
  const char how = context_.control.stop_outcome == RunOutcome::kInterrupted ? 'i' : 's';
  const std::string said = context_.communicator->broadcast(how + context_.control.stop_reason, rank);
  const RunOutcome outcome = said.front() == 'i' ? RunOutcome::kInterrupted : RunOutcome::kStopped;
  if (context_.control.stop_reason.empty())
    context_.control.request_stop(c10::str("rank ", rank, ": ", said.substr(1)));
  context_.control.stop_outcome = outcome;
}

void BaseTrainer::agree_on_stop() {
  if (context_.communicator == nullptr || stop_agreed_) return;
  const int64_t rank = meet(kBetweenSteps, {}).first_with(Meeting::kStops);
  if (rank >= 0) adopt_stop(rank);
}

// Who stops has fetched nothing.
BaseTrainer::Turn BaseTrainer::agree_on_window(MicroBatches& micro_batches) {
  const Meeting meeting = meet(kBeforeStep, micro_batches);
  if (const int64_t rank = meeting.first_with(Meeting::kStops); rank >= 0) {
    adopt_stop(rank);
    return Turn::kStop;
  }
  adopt(meeting, micro_batches);
  return meeting.first_with(Meeting::kBatches) >= 0 ? Turn::kRun : Turn::kExhausted;
}

void BaseTrainer::agree_on_total(MicroBatches& micro_batches) {
  micro_batches.samples_elsewhere = 0;  // of the step before
  adopt(meet(kBeforeStep, micro_batches), micro_batches);
}

void BaseTrainer::adopt(const Meeting& meeting, MicroBatches& micro_batches) {
  meeting.tell(micro_batches);
  const bool runs = meeting.first_with(Meeting::kBatches) >= 0;  // else there is no step that could agree
  const bool they_differ = runs && meeting.differ_in(Meeting::kFingerprint);
  if (they_differ) rule_->agree_anew();
  if (runs) warn_of_same_batches(micro_batches);
  ranks_mix_ = they_differ || meeting.differ_in(Meeting::kPlan);
}

bool BaseTrainer::loop_ends() const {
  return limits_reached() || (context_.communicator != nullptr ? stop_agreed_ : !context_.control.stop_reason.empty());
}

// Sources of the user's own may differ in length: an epoch is over when no rank has anything left.
int64_t BaseTrainer::agree_on_epoch(int64_t steps) {
  if (context_.communicator == nullptr) return steps;
  context_.communicator->set_running(false);
  MicroBatches length;
  length.total = static_cast<double>(steps);
  double most = 0;
  for (const auto& row : meet(kAtStart, length).rows) {
    if (row[Meeting::kWeight] == 0) return 0;
    most = std::max(most, row[Meeting::kWeight]);
  }
  return static_cast<int64_t>(most);
}

void BaseTrainer::check_data(const DataSource& data, const char* what) {
  if (context_.communicator == nullptr) return;
  meet(kBeforeData, {});
  check_same_data(data, *context_.communicator, what);
}

namespace {

// A line for each tensor; empty if there is none.
std::string first_batch_of(const MicroBatches& micro_batches) {
  std::string lines;
  if (micro_batches.batches.empty()) return lines;
  for (const auto& [name, tensor] : micro_batches.batches.front().items()) lines += name + " " + bits_hash(tensor) + "\n";
  return lines;
}

}  // namespace

// Once: whoever forgets to share out the data trains all ranks on the same.
void BaseTrainer::warn_of_same_batches(const MicroBatches& micro_batches) {
  Communicator& ranks = *context_.communicator;
  if (std::exchange(looked_at_batches_, true) || ranks.world_size() == 1) return;
  if (context_.data != nullptr && context_.data->shard()) return;
  const std::vector<std::string> all = ranks.all_gather(first_batch_of(micro_batches));
  const bool same = std::all_of(all.begin(), all.end(), [&](const std::string& text) { return text == all[0]; });
  if (!same || all[0].empty() || !context_.is_main) return;
  log_warning("[Distributed] all ranks begin with the same micro-batch: they train on the same samples, unless that is "
              "meant. Give every rank its part of the data, a DataLoader by means of a DistributedSampler");
}

// Who is done with everything still waits for one whose last hooks fail.
void BaseTrainer::meet_at_end() {
  if (context_.communicator == nullptr) return;
  context_.communicator->set_patient(true);
  report("end");
  context_.communicator->barrier();
  warn_of_drift();
  context_.communicator->set_patient(false);
}

namespace {

// One line for each tensor that a metric wants summed: "accuracy: Double [2]".
std::string sums_text(const Metric& metric, const std::vector<at::Tensor>& sums) {
  const std::vector<std::string> names = metric.names();
  std::string text;
  for (const at::Tensor& part : sums) {
    text += c10::str(names.empty() ? "a metric" : names.front(), ": ", part.scalar_type(), " ", part.sizes(), "\n");
  }
  return text;
}

// Sums of different tensors would be of nothing, or wait for each other in vain.
void check_same_sums(Communicator& ranks, const std::string& own) {
  const std::vector<std::string> all = ranks.all_gather(own);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto [first, other] = first_different_lines(all[0], all[rank]);
    throw ConfigError(c10::str("[Metric] found other sums on rank ", rank, " than on rank 0 (", other, "; on rank 0 ",
                               first, "), expected tensors of the same types and shapes everywhere, zeros on a rank ",
                               "without samples; give all ranks the same metrics, and mend Metric::sums()"));
  }
}

}  // namespace

void BaseTrainer::sum_over_ranks(const std::vector<Metric*>& metrics) {
  if (context_.communicator == nullptr) return;
  std::vector<at::Tensor> parts;
  std::string text;
  for (Metric* metric : metrics) {
    const std::vector<at::Tensor> sums = metric->sums(device_);
    text += sums_text(*metric, sums);
    parts.insert(parts.end(), sums.begin(), sums.end());
  }
  check_same_sums(*context_.communicator, text);
  for (at::Tensor& part : parts) {
    const at::Tensor sums = part.contiguous();
    context_.communicator->start_sum(sums);
    context_.communicator->finish(sums);
    if (!sums.is_same(part)) part.copy_(sums);
  }
}

}  // namespace duet
