// How much of the all-reduces happens while backward still runs, seen by the profiler: two processes of one machine,
// one thread each, both modes. A row per rank; medians over steps.
//
//   overlap_benchmark [--rounds N] [--steps N] [--width N] [--trace FOLDER]
//
// "all-reduce" is the time with at least one of them at work: the spans that c10d's workers leave in the trace, from
// the moment a worker takes the sum to its end. "in backward" is the share of that time before backward's last operator
// has ended, "waits" what the step spends in duet::finish_, "hidden" the share that it does not wait for. A rank that
// is ahead is in an all-reduce without a partner; "joint" counts the time with both ranks in one, and its share in
// backward. The first bucket has 1 MB. --trace keeps the traces of the last round for Perfetto.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include "benchmarks/figures.h"
#include "benchmarks/ranks.h"
#include "core/trainer.h"
#include "distributed/detail/connect.h"

namespace duet::benchmarks {

namespace {

using torch::autograd::profiler::KinetoEvent;
using torch::autograd::profiler::ProfilerResult;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

struct Span {
  double begin = 0, end = 0;  // milliseconds
  double length() const { return end - begin; }
};

using Spans = std::vector<Span>;

Span span_of(const KinetoEvent& event) {
  return {static_cast<double>(event.startNs()) / 1e6, static_cast<double>(event.endNs()) / 1e6};
}

double length_of(const Spans& spans) {
  double length = 0;
  for (const Span& span : spans) length += span.length();
  return length;
}

// In order and apart from each other.
Spans union_of(Spans spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  Spans joined;
  for (const Span& span : spans) {
    if (!joined.empty() && span.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, span.end);
    } else {
      joined.push_back(span);
    }
  }
  return joined;
}

Spans intersection_of(const Spans& some, const Spans& others) {
  Spans common;
  for (const Span& a : some) {
    for (const Span& b : others) {
      const Span both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
      if (both.length() > 0) common.push_back(both);
    }
  }
  return common;
}

// One step of one rank.
struct TrainStep {
  Span whole, backward;
  Spans sums, waits;
};

// A replayed backward has no autograd engine around it. So in both modes it begins with the first operator that has
// "backward" in its name and ends with the last one that is through before the first wait, starts of sums aside.
Span backward_of(const std::vector<const KinetoEvent*>& operators, const Spans& waits) {
  Span backward;
  for (const KinetoEvent* const event : operators) {
    const std::string name = event->name();
    const Span span = span_of(*event);
    if (span.end > waits.front().begin) continue;  // later, or around it all
    const bool named = name.find("backward") != std::string::npos || name.find("Backward") != std::string::npos;
    if (backward.begin == 0 && named) backward.begin = span.begin;
    if (name.rfind("duet::start_", 0) != 0) backward.end = std::max(backward.end, span.end);
  }
  if (backward.begin == 0) throw std::runtime_error("no backward in the trace");
  return backward;
}

TrainStep step_of(const KinetoEvent& whole, const std::vector<KinetoEvent>& events) {
  TrainStep step;
  step.whole = span_of(whole);
  std::vector<const KinetoEvent*> operators;
  std::size_t starts = 0;
  for (const KinetoEvent& event : events) {
    const Span span = span_of(event);
    if (span.begin < step.whole.begin || span.end > step.whole.end) continue;
    const std::string name = event.name();
    if (name == "gloo:all_reduce") step.sums.push_back(span);
    if (name == "duet::finish_") step.waits.push_back(span);
    if (name == "duet::start_sum_") ++starts;
    if (event.startThreadId() == whole.startThreadId()) operators.push_back(&event);
  }
  std::sort(operators.begin(), operators.end(),
            [](const KinetoEvent* a, const KinetoEvent* b) { return a->startNs() < b->startNs(); });
  step.waits = union_of(step.waits);
  if (step.waits.empty() || step.sums.size() != starts) {
    throw std::runtime_error("found " + std::to_string(step.sums.size()) +
                             " all-reduces that end in their step, expected " + std::to_string(starts));
  }
  step.backward = backward_of(operators, step.waits);
  return step;
}

// What goes from a rank to the process that prints: for each step its spans, and how many they are.
Numbers packed(const ProfilerResult& trace) {
  Numbers numbers;
  const auto put = [&](const Spans& spans) {
    numbers.push_back(static_cast<double>(spans.size()));
    for (const Span& span : spans) numbers.insert(numbers.end(), {span.begin, span.end});
  };
  for (const KinetoEvent& event : trace.events()) {
    if (event.name() != "step") continue;
    const TrainStep step = step_of(event, trace.events());
    put({step.whole, step.backward});
    put(step.sums);
    put(step.waits);
  }
  return numbers;
}

std::vector<TrainStep> unpacked(const Numbers& numbers) {
  std::vector<TrainStep> steps;
  auto at = numbers.begin();
  const auto take = [&] {
    Spans spans(static_cast<std::size_t>(*at++));
    for (Span& span : spans) {
      span.begin = *at++;
      span.end = *at++;
    }
    return spans;
  };
  while (at != numbers.end()) {
    const Spans frame = take();
    TrainStep step{frame[0], frame[1], take(), {}};
    step.waits = take();
    steps.push_back(step);
  }
  return steps;
}

struct Row {
  std::string mode, name;
  int64_t bucket_bytes, first_bucket_bytes;
  std::vector<Numbers> figures{};  // by rank and column; per step
};

// Columns of a row.
enum { kStep, kBackward, kSums, kInBackward, kWaits, kHidden, kJoint, kJointInBackward, kColumns };

Numbers record(const Row& row, const Size& size, const std::string& folder, const Launch& launch) {
  const std::shared_ptr<Communicator> ranks = connect(launch, at::kCPU);
  const auto trainer = make_trainer(
      row.mode, size,
      {.communicator = ranks, .bucket_bytes = row.bucket_bytes, .first_bucket_bytes = row.first_bucket_bytes});
  const Batch batch = make_batch(size);
  for (int64_t i = 0; i < size.warmup; ++i) trainer->step(batch);
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CPU};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  for (int64_t i = 0; i < size.steps; ++i) {
    RECORD_USER_SCOPE("step");
    trainer->step(batch);
  }
  ranks->barrier();
  const auto trace = torch::autograd::profiler::disableProfiler();
  Numbers numbers = packed(*trace);
  if (!folder.empty()) {
    std::string name = row.mode + "-" + row.name + ".rank-" + std::to_string(launch.rank) + ".json";
    std::replace(name.begin(), name.end(), ' ', '-');
    trace->save(folder + "/" + name);
  }
  return numbers;
}

void add(Row& row, const std::vector<Numbers>& given) {
  std::vector<std::vector<TrainStep>> ranks;
  for (const Numbers& numbers : given) ranks.push_back(unpacked(numbers));
  row.figures.resize(ranks.size() * kColumns);
  for (std::size_t i = 0; i < ranks.front().size(); ++i) {
    Spans joint = union_of(ranks.front()[i].sums);
    for (const auto& steps : ranks) joint = intersection_of(joint, union_of(steps[i].sums));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const TrainStep& step = ranks[rank][i];
      const Spans sums = union_of(step.sums);
      const double sum_time = length_of(sums), waits = length_of(step.waits), joint_time = length_of(joint);
      const auto share_in_backward = [&](const Spans& spans, double time) {
        return time == 0 ? 0 : 100 * length_of(intersection_of(spans, {step.backward})) / time;
      };
      const Numbers columns = {step.whole.length(),
                               step.backward.length(),
                               sum_time,
                               share_in_backward(sums, sum_time),
                               waits,
                               100 * (1 - waits / sum_time),
                               joint_time,
                               share_in_backward(joint, joint_time)};
      for (std::size_t c = 0; c < kColumns; ++c) row.figures[rank * kColumns + c].push_back(columns[c]);
    }
  }
}

void print(const Row& row) {
  for (std::size_t rank = 0; rank * kColumns < row.figures.size(); ++rank) {
    const auto figure = [&](std::size_t column) { return median(row.figures[rank * kColumns + column]); };
    std::printf("%-38s %4zu %8.1f %9.1f %11.1f %9.0f %% %7.1f %6.0f %% %7.1f %9.0f %%\n",
                (row.mode + ", " + row.name).c_str(), rank, figure(kStep), figure(kBackward), figure(kSums),
                figure(kInBackward), figure(kWaits), figure(kHidden), figure(kJoint), figure(kJointInBackward));
  }
}

// The first row of a mode hides nothing.
int run(const Size& size, int64_t rounds, const std::string& folder) {
  constexpr int64_t kMB = int64_t{1} << 20, kAll = int64_t{1} << 40;
  std::vector<Row> rows;
  for (const char* mode : {"eager", "graph"}) {
    rows.push_back({mode, "one bucket", kAll, kAll});
    rows.push_back({mode, "buckets of 25 MB", 25 * kMB, kMB});
    rows.push_back({mode, "buckets of 8 MB", 8 * kMB, kMB});
  }
  for (int64_t i = 0; i < rounds; ++i) {
    for (Row& row : rows) {
      const std::string kept = i + 1 == rounds ? folder : "";
      add(row, on_ranks(2, [&](const Launch& launch) { return record(row, size, kept, launch); }));
    }
  }
  std::printf("%s, 2 ranks; milliseconds per step\n", size.text().c_str());
  std::printf("%-38s %4s %8s %9s %11s %11s %7s %8s %7s %11s\n", "trainer", "rank", "step", "backward", "all-reduce",
              "in backward", "waits", "hidden", "joint", "in backward");
  for (const Row& row : rows) print(row);
  return 0;
}

}  // namespace

}  // namespace duet::benchmarks

int main(int argc, char** argv) {
  const duet::benchmarks::Flags flags(argc, argv);
  return duet::benchmarks::run(duet::benchmarks::read_size(flags), flags.number("--rounds", 5), flags.text("--trace"));
}
