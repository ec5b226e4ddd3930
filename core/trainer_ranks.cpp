#include <duet/core/comm/communicator.h>
#include <duet/core/comm/gather_state.h>
#include <duet/core/error.h>
#include <duet/core/random.h>
#include <duet/core/trainer.h>

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace duet {

// What a trainer and those of the other ranks agree on. In one process there is nobody to ask.

void BaseTrainer::report(const char* phase) {
  if (context_.communicator != nullptr) context_.communicator->report(context_.update, phase);
}

// With one seed all ranks would draw the same dropout masks.
void BaseTrainer::draw_own_numbers() { seed_all(rank_seed(default_seed(), context_.communicator->rank())); }

// What every rank brings to a meeting: where it is, whether it wants to stop, its micro-batches and their weight.
struct BaseTrainer::Meeting {
  std::vector<std::vector<double>> rows;
  enum Column { kWhere, kStops, kBatches, kWeight, kPlan, kSamples };
  // The first rank whose number is not 0; -1: none.
  int64_t first_with(Column column) const {
    const auto found = std::find_if(rows.begin(), rows.end(), [column](const auto& row) { return row[column] != 0; });
    return found == rows.end() ? -1 : found - rows.begin();
  }
  bool plans_differ() const {
    return std::any_of(rows.begin(), rows.end(), [this](const auto& row) { return row[kPlan] != rows[0][kPlan]; });
  }
  double sum(Column column) const {
    double sum = 0;
    for (const auto& row : rows) sum += row[column];
    return sum;
  }
  // What the ranks have together becomes known to `window`.
  void tell(Window& window) const {
    window.total = sum(kWeight);
    window.samples_elsewhere = static_cast<int64_t>(sum(kSamples)) - window.samples();
  }
};

namespace {

constexpr double kBeforeUpdate = 1, kBetweenUpdates = 2, kAtStart = 3;

}  // namespace

BaseTrainer::Meeting BaseTrainer::meet(double where, const Window& window, double plan) const {
  Meeting meeting;
  const double stops = context_.stop_reason.empty() ? 0 : 1;
  meeting.rows =
      context_.communicator->all_gather(std::vector<double>{where, stops, static_cast<double>(window.batches.size()),
                                                            window.total, plan, static_cast<double>(window.samples())});
  for (std::size_t rank = 0; rank < meeting.rows.size(); ++rank) {
    if (meeting.rows[rank][Meeting::kWhere] == where) continue;
    throw ConfigError(
        c10::str("[Distributed] rank ", rank, " is at another place of the loop than rank ",
                 context_.communicator->rank(), " after update ", context_.update,
                 ", expected all at the same; give every rank the same limits, intervals, validation data and hooks"));
  }
  return meeting;
}

// All ranks stop for the first of them that wants to, and for its reason.
void BaseTrainer::adopt_stop(int64_t rank) {
  stop_agreed_ = true;
  const char how = context_.stop_outcome == RunOutcome::kInterrupted ? 'i' : 's';
  const std::string said = context_.communicator->broadcast(how + context_.stop_reason, rank);
  const RunOutcome outcome = said.front() == 'i' ? RunOutcome::kInterrupted : RunOutcome::kStopped;
  if (context_.stop_reason.empty()) context_.request_stop(c10::str("rank ", rank, ": ", said.substr(1)));
  context_.stop_outcome = outcome;
}

void BaseTrainer::agree_on_stop() {
  if (context_.communicator == nullptr || stop_agreed_) return;
  const int64_t rank = meet(kBetweenUpdates, {}).first_with(Meeting::kStops);
  if (rank >= 0) adopt_stop(rank);
}

// Who stops has fetched nothing.
BaseTrainer::Turn BaseTrainer::agree_on_window(Window& window) {
  const Meeting meeting = meet(kBeforeUpdate, window, next_plan(window));
  if (const int64_t rank = meeting.first_with(Meeting::kStops); rank >= 0) {
    adopt_stop(rank);
    return Turn::kStop;
  }
  meeting.tell(window);
  ranks_mix_ = meeting.plans_differ();
  return meeting.first_with(Meeting::kBatches) >= 0 ? Turn::kRun : Turn::kExhausted;
}

void BaseTrainer::agree_on_total(Window& window) {
  window.samples_elsewhere = 0;  // of the update before
  const Meeting meeting = meet(kBeforeUpdate, window, next_plan(window));
  ranks_mix_ = meeting.plans_differ();
  meeting.tell(window);
}

bool BaseTrainer::loop_ends() const {
  return limits_reached() || (context_.communicator != nullptr ? stop_agreed_ : !context_.stop_reason.empty());
}

// Sources of the user's own may differ in length: an epoch is over when no rank has anything left.
int64_t BaseTrainer::agree_on_epoch(int64_t updates) {
  if (context_.communicator == nullptr) return updates;
  Window length;
  length.total = static_cast<double>(updates);
  double most = 0;
  for (const auto& row : meet(kAtStart, length).rows) {
    if (row[Meeting::kWeight] == 0) return 0;
    most = std::max(most, row[Meeting::kWeight]);
  }
  return static_cast<int64_t>(most);
}

void BaseTrainer::sum_over_ranks(Metric& metric) {
  if (context_.communicator == nullptr) return;
  for (at::Tensor& part : metric.sums(device_)) {
    const at::Tensor sums = part.contiguous();
    context_.communicator->start_sum(sums);
    context_.communicator->finish(sums);
    if (!sums.is_same(part)) part.copy_(sums);
  }
}

// The state of rank r's generators is "random" for r = 0 and "random_ranks.r" for the others.
void BaseTrainer::add_random_of_ranks(StateDict& state) const {
  if (context_.communicator == nullptr) return;
  const std::vector<StateDict> all = gather_state(*context_.communicator, random_state());
  for (std::size_t rank = 1; rank < all.size(); ++rank) state.put("random_ranks." + std::to_string(rank), all[rank]);
}

// At another world size than the saved one the generators of all ranks but 0 start anew, from what rank 0's is seeded
// with, the update and the rank.
StateDict BaseTrainer::random_of_this_rank(const StateDict& state) const {
  const StateDict main = state.part("random");
  const Communicator* ranks = context_.communicator;
  if (ranks == nullptr || ranks->is_main()) return main;
  const std::string last = "random_ranks." + std::to_string(ranks->world_size() - 1) + ".cpu";
  const std::string beyond = "random_ranks." + std::to_string(ranks->world_size()) + ".cpu";
  if (state.has(last) && !state.has(beyond)) return state.part("random_ranks." + std::to_string(ranks->rank()));
  const StateDict present = random_state();
  set_random_state(main);
  seed_all(rank_seed(default_seed() + static_cast<uint64_t>(state.integer("trainer.update")), ranks->rank()));
  StateDict own = random_state();
  set_random_state(present);
  return own;
}

}  // namespace duet
