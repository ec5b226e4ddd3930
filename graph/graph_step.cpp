#include <functional>
#include <utility>
#include "base/error.h"
#include "core/detail/micro_batch_reader.h"
#include "core/detail/step_place.h"
#include "core/detail/train_step.h"
#include "core/task.h"
#include "graph/detail/graph_executor.h"
#include "graph/graph_trainer.h"

namespace duet {

namespace {

template <class Options>
std::string first_changed(const Options& options) {
  const Options defaults{};
  for (const OptionField& field : Options::fields()) {
    if (field.is_member() && field.get(&options) != field.get(&defaults)) return field.name;
  }
  return {};
}

const TrainerOptions& step_alone(const TrainerOptions& options) {
  const auto refuse = [](bool given, const std::string& what, const std::string& way_out) {
    require<ConfigError>(!given, "[GraphStep] found " + what + ", expected the options of a step alone; " + way_out);
  };
  options.validate();
  refuse(!options.schedules.empty(), "schedules", "give them to hyper_parameters().set_schedule()");
  refuse(!options.work_dir.empty(), "work_dir", "a step writes no files");
  refuse(!options.amp_eval, "amp_eval", "a step evaluates nothing");
  refuse(options.loop.accumulate != 1, "accumulate", "call the step with a list of micro-batches");
  const std::string of_loop = first_changed(options.loop), of_ranks = first_changed(options.distributed);
  refuse(!of_loop.empty(), of_loop, "the loop is yours");
  refuse(!options.distributed.communicator->is_single(), "several ranks", "train with a GraphTrainer");
  refuse(!of_ranks.empty(), of_ranks, "a step knows of no other ranks: train with a GraphTrainer");
  return options;
}

}  // namespace

struct GraphStep::Parts {
  // Nobody acts inside the step.
  class OutputsKeeper : public StepObserver {
   public:
    bool wants_outputs() const override { return keeps; }
    int64_t version() const override { return keeps ? 1 : 0; }

    bool keeps = false;
  };

  Parts(std::unique_ptr<Task> task, const TrainerOptions& options, const GraphOptions& graph)
      : step(std::move(task), options.resolved_device(), step_alone(options)),
        reader(step.task(), step.device()),
        executors(step, step.device(), graph_executor_with(graph)),
        executor(&executors.in(Mode::kGraph)) {}

  StepPlace place(const MicroBatches& micro_batches) { return {"step", steps, step, micro_batches.batches}; }
  MicroBatches prepare(std::vector<Batch> batches) {
    MicroBatches prepared = reader.prepare(std::move(batches), steps);
    require<DataError>(prepared.total > 0,
                       "[GraphStep] found no micro-batch with a weight > 0, expected one; check Task::weight and the "
                       "data");
    return prepared;
  }
  void run(std::vector<Batch> micro_batches) {
    const MicroBatches prepared = prepare(std::move(micro_batches));
    step.begin(prepared);
    const StepPlan plan = executor->choose(prepared, observer);
    result = with_place(place(prepared), [&] { return executor->run(plan, prepared, observer); });
    step.end();
    ++steps;
  }
  // Where everything of a step runs, in both modes: autograd's nodes belong to the stream that they are made on, and a
  // capture takes none of another one.
  void on_stream(const std::function<void()>& work) { executors.in(Mode::kGraph).on_stream(work); }
  const GraphExecutor& graph() const { return static_cast<const GraphExecutor&>(*executors.made(Mode::kGraph)); }

  TrainStep step;
  MicroBatchReader reader;
  OutputsKeeper observer;
  StepResult result;
  StepExecutors executors;  // goes first: captured steps refer to the others
  StepExecutor* executor;   // of the present mode
  Mode mode = Mode::kGraph;
  int64_t steps = 0;
};

GraphStep::GraphStep(std::unique_ptr<Task> task, const TrainerOptions& options, const GraphOptions& graph)
    : parts_(std::make_unique<Parts>(std::move(task), options, graph)) {}

GraphStep::~GraphStep() = default;

const StepResult& GraphStep::operator()(const Batch& batch) {
  return (*this)(std::vector<Batch>(1, batch));  // a braced list would copy it twice
}

const StepResult& GraphStep::operator()(std::vector<Batch> micro_batches) {
  parts_->on_stream([&] { parts_->run(std::move(micro_batches)); });
  return parts_->result;
}

const StepResult& GraphStep::result() const { return parts_->result; }

void GraphStep::keep_outputs(bool keep) { parts_->observer.keeps = keep; }

StepExplanation GraphStep::explain(const Batch& batch) {
  StepExplanation explanation;
  parts_->on_stream([&] {
    const MicroBatches prepared = parts_->prepare(std::vector<Batch>(1, batch));
    explanation = with_place(parts_->place(prepared),
                             [&] { return parts_->executor->explain(parts_->step, prepared, parts_->observer); });
  });
  explanation.mode = to_string(parts_->mode);
  return explanation;
}

void GraphStep::set_mode(Mode mode) {
  if (mode == parts_->mode) return;
  settle();
  parts_->executor = &parts_->executors.in(mode);
  parts_->mode = mode;
}

Mode GraphStep::mode() const { return parts_->mode; }

void GraphStep::settle() {
  parts_->step.check_parameters();
  parts_->on_stream([&] {
    parts_->step.settle();
    parts_->executor->settle(parts_->observer);
  });
}

Task& GraphStep::task() { return parts_->step.task(); }

HyperParameters& GraphStep::hyper_parameters() { return parts_->step; }

std::vector<SignatureReport> GraphStep::report() const { return parts_->graph().report(); }

// In mode eager the graph executor sees no step.
int64_t GraphStep::eager_steps() const { return parts_->steps - replays(); }

int64_t GraphStep::replays() const { return parts_->graph().replays(); }

StateDict GraphStep::state_dict() const {
  StateDict state;
  state.put("model", weights_of(parts_->step.task()));
  state.put("optimizer", parts_->step.state_dict());
  return state;
}

void GraphStep::load_state_dict(const StateDict& state) {
  match_weights(task(), state.part("model"), /*strict=*/true);
  parts_->step.load_state_dict(state.part("optimizer"));
  load_matching_weights(task(), state.part("model"));
  parts_->executors.state_replaced();
}

}  // namespace duet
