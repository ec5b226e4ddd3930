#include "tests/graph/fuzz/parity.h"
#include <algorithm>
#include <memory>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/error.h"
#include "hooks/ema_hook.h"
#include "tests/support/trainer_runs.h"

namespace duet::testing::fuzz {

namespace {

struct FuzzModel : nn::Module {};

Tensor with_type(const Tensor& value, char type) {
  const bool is_float = type == 'm' || type == 'i' || type == 's' || type == 'z';
  return is_float && value.scalar_type() != at::kFloat ? value.to(at::kFloat) : value;  // autocast gives others
}

Tensor term_of(const Tensor& value) {
  if (value.is_complex()) return torch::view_as_real(value.resolve_conj()).square().mean();
  return value.to(at::kFloat).square().mean();
}

// The program as a model: its ops are made once and applied in every step.
class FuzzNet {
 public:
  FuzzNet(const Program& program, nn::Module& model, User& user) : program_(program) {
    first_ = model.register_module("first", nn::Linear(kColumns, kColumns));
    for (std::size_t n = 0; n < program.nodes.size(); ++n) {
      const Node& node = program.nodes[n];
      const OpKind& kind = op_kinds()[node.kind];
      Site site{model, "op" + std::to_string(n) + "_" + kind.name, std::mt19937(node.seed), user};
      ops_.push_back(kind.make(site));
    }
  }

  Tensor loss(const Batch& batch) {
    Tensors values = {first_(batch["x"]), batch["x"], batch["y"], batch["target"]};
    std::vector<bool> used(Program::kGiven + ops_.size());
    Tensor loss = 0.1 * term_of(values[0]);
    for (std::size_t n = 0; n < ops_.size(); ++n) {
      Tensors arguments;
      for (const std::size_t value : program_.nodes[n].takes) {
        arguments.push_back(values[value]);
        used[value] = true;
      }
      values.push_back(with_type(ops_[n](arguments), program_.type(Program::kGiven + n)));
    }
    for (std::size_t v = Program::kGiven; v < values.size(); ++v) {
      if (program_.type(v) == 'z') {
        loss = loss + values[v];
      } else if (!used[v]) {
        loss = loss + term_of(values[v]);
      }
    }
    return loss;
  }

 private:
  Program program_;
  nn::Linear first_{nullptr};
  std::vector<Apply> ops_;
};

// Rows start where memory of LibTorch's does: the bits of some of its kernels depend on that.
Batch random_batch(int64_t rows, int layout, uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  Tensor x = torch::randn({rows + 2, 2 * kColumns}, generator).narrow(0, 1, rows).narrow(1, kColumns, kColumns);
  if (layout != 3) x = x.contiguous();
  if (layout == 1) x = x.t().contiguous().t();
  Tensor y = torch::rand({rows, kColumns}, generator);
  if (layout == 2) y = y.narrow(0, 1, 1).expand_as(y);
  Tensor target = torch::randint(kClasses, {rows}, generator, torch::kInt64);
  if (layout == 2) target = target.narrow(0, 1, 1).expand_as(target);
  return {{"x", x}, {"y", y}, {"target", target}};
}

OptimizerOptions optimizer_of(int number) {
  switch (number) {
    case 0: return SGD{.lr = 0.05};
    case 1: return SGD{.lr = 0.05, .momentum = 0.9, .nesterov = true};
    case 2: return Adam{.lr = 1e-2, .weight_decay = 0.01};
    case 3: return AdamW{.lr = 1e-2, .amsgrad = true};
    case 4: return Adagrad{};
    case 5: return RMSprop{.momentum = 0.5, .centered = true};
    case 6: return NAdam{};
    case 7: return RAdam{};
    case 8: return Lion{.lr = 1e-3};
    case 9: return Muon{};
    case 10: return Adadelta{};
    case 11: return Adafactor{};
    case 12: return Adamax{};
    case 13: return ASGD{};
    default: return Rprop{};
  }
}

TrainerOptions options_of(const Settings& settings) {
  TrainerOptions options;
  options.optimizer = optimizer_of(settings.optimizer);
  if (settings.clipping == 1) options.clip_grad = ClipNorm{.max_norm = 0.5};
  if (settings.clipping == 2) options.clip_grad = ClipValue{.clip_value = 0.01};
  if (settings.amp > 0) options.amp = settings.amp == 1 ? at::kBFloat16 : at::kHalf;
  options.loop.accumulate = settings.accumulate;
  return options;
}

GraphOptions graph_options_of(const Settings& settings) {
  GraphOptions graph;
  graph.fuse_after = settings.optimizer % 2 == 0 ? 0 : 2;
  if (!settings.guarded) {
    graph.check = Check::kOff;
    graph.verify_interval = 0;
  }
  return graph;
}

void add_observers(BaseTrainer& trainer, const FuzzModel& model, const Settings& settings) {
  if (settings.observers == 1) {
    trainer.on(HookPoint::kAfterBackward, [weight = model.parameters()[0]](TrainContext&) {
      if (weight.grad().defined()) weight.grad().mul_(0.5);
    });
  }
  if (settings.observers == 2) trainer.add_hook(std::make_unique<EMAHook>());
}

// In the place of y; the next one lies elsewhere.
void move_into(const Tensor& ring, Batch& batch, int64_t number) {
  const Tensor y = batch["y"];
  const Tensor part = ring.narrow(0, number % 5 * 8, y.size(0));
  part.copy_(y);
  batch.set("y", part);
}

std::vector<Batch> batches_of(const Settings& settings, int64_t step, const User& user) {
  std::vector<Batch> batches;
  const int64_t rows = settings.other_rows && step % 3 == 2 ? settings.rows + 8 : settings.rows;
  for (int64_t n = 0; n < settings.accumulate; ++n) {
    batches.push_back(random_batch(rows, settings.layout, static_cast<uint64_t>(step * 10 + n)));
    if (settings.layout == 4) move_into(user.ring, batches.back(), step + n);
  }
  return batches;
}

struct FuzzRun {
  NamedTensors seen;
  std::string error;
  bool graph_error = false;
  std::vector<SignatureReport> report;

  void see(const std::string& name, const Tensor& tensor) {
    if (tensor.defined()) seen.emplace_back(name, tensor.detach().resolve_conj().clone());
  }
};

void train(BaseTrainer& trainer, const FuzzModel& model, const Settings& settings, User& user, FuzzRun& run) {
  for (int64_t n = 0; n < settings.steps; ++n) {
    const std::string step = "step " + std::to_string(n) + ": ";
    for (const auto& act : user.between) act(trainer, n);
    run.see(step + "loss", trainer.step(batches_of(settings, n, user)).loss);
    for (std::size_t k = 0; k < user.kept.size(); ++k) run.see(step + "kept " + std::to_string(k), user.kept[k]);
    for (const auto& item : model.named_parameters()) {
      run.see(step + "gradient of " + item.key(), item.value().grad());
      run.see(step + item.key(), item.value());
    }
  }
  trainer.finish();
}

FuzzRun run_in(const std::string& mode, const Program& program) {
  seed_all(program.seed % 1000);
  FuzzRun run;
  User user;
  auto model = std::make_shared<FuzzModel>();
  auto net = std::make_shared<FuzzNet>(program, *model, user);
  const auto trainer =
      make_trainer(mode, make_task(model, [net](FuzzModel&, const Batch& batch) { return net->loss(batch); }),
                   options_of(program.settings), graph_options_of(program.settings));
  add_observers(*trainer, *model, program.settings);
  try {
    train(*trainer, *model, program.settings, user, run);
    const StateDict state = trainer->state_dict();
    for (const auto& [name, tensor] : state.tensors()) run.see(name, tensor);
  } catch (const std::exception& error) {
    run.error = error.what();
    run.error = run.error.substr(0, run.error.find("Exception raised from"));
    run.graph_error = dynamic_cast<const GraphError*>(&error) != nullptr;
  }
  if (auto* graph = dynamic_cast<GraphTrainer*>(trainer.get())) run.report = graph->report();
  return run;
}

const Tensor* named(const NamedTensors& tensors, const std::string& name) {
  for (const auto& item : tensors) {
    if (item.first == name) return &item.second;
  }
  return nullptr;
}

std::string how_far(const std::string& name, const NamedTensors& eager, const NamedTensors& graph) {
  const Tensor* a = named(eager, name);
  const Tensor* b = named(graph, name);
  if (a == nullptr || b == nullptr || a->sizes() != b->sizes() || a->numel() == 0) return " (another shape)";
  const auto wide = [](const Tensor& x) {
    return x.is_complex() ? torch::view_as_real(x).to(at::kDouble) : x.to(at::kDouble);
  };
  return c10::str(" (by up to ", (wide(*a) - wide(*b)).abs().max().item<double>(), ")");
}

std::string alarm_in(const FuzzRun& run) {
  for (const SignatureReport& report : run.report) {
    const bool alarm = report.differing > 0 || report.reason.find("host code") != std::string::npos ||
                       report.reason.find("its replay differs") != std::string::npos;
    if (alarm && report.reason.find("by its address") == std::string::npos) return report.reason;
  }
  return {};
}

bool ran_twice(const FuzzRun& run) {
  return std::any_of(run.report.begin(), run.report.end(), [](const SignatureReport& report) {
    return report.reason.find("ran twice") != std::string::npos;
  });
}

}  // namespace

const char* name_of(Verdict verdict) {
  constexpr const char* names[] = {"same bits",
                                   "refused with an error",
                                   "eager fails as well",
                                   "eager is not steady",
                                   "ran host code twice and said so",
                                   "false alarms",
                                   "unexpected errors",
                                   "differences"};
  return names[static_cast<int>(verdict)];
}

Parity compare_modes(const Program& program) {
  const FuzzRun eager = run_in("eager", program);
  if (!eager.error.empty()) return {Verdict::kInvalid, eager.error, {}};
  const FuzzRun graph = run_in("graph", program);
  const bool changes = program.changes_host_code();
  if (!graph.error.empty()) {
    const Verdict verdict = changes && graph.graph_error ? Verdict::kRefused : Verdict::kError;
    return {verdict, graph.error, graph.report};
  }
  const std::vector<std::string> different = differences(eager.seen, graph.seen);
  if (!different.empty()) {
    const std::string what = different.front() + how_far(different.front(), eager.seen, graph.seen);
    const bool steady = differences(eager.seen, run_in("eager", program).seen).empty();
    const Verdict verdict = !steady                       ? Verdict::kUnsteady
                            : changes && ran_twice(graph) ? Verdict::kRanTwice
                                                          : Verdict::kDiffers;
    return {verdict, what, graph.report};
  }
  const std::string alarm = changes ? "" : alarm_in(graph);
  return {alarm.empty() ? Verdict::kSame : Verdict::kFalseAlarm, alarm, graph.report};
}

namespace {

template <class Change>
bool still_fails(Program& program, Verdict verdict, Change change) {
  Program simpler = program;
  change(simpler.settings);
  if (text_of(simpler) == text_of(program) || compare_modes(simpler).verdict != verdict) return false;
  program = simpler;
  return true;
}

}  // namespace

Program shrunk(Program program, Verdict verdict) {
  bool smaller = true;
  while (smaller) {
    smaller = false;
    for (std::size_t n = program.nodes.size(); n-- > 0;) {
      Program candidate;
      if (!without(program, n, candidate) || compare_modes(candidate).verdict != verdict) continue;
      program = candidate;
      smaller = true;
    }
  }
  void (*const simpler[])(Settings&) = {
      [](Settings& s) { s.accumulate = 1; }, [](Settings& s) { s.amp = 0; },
      [](Settings& s) { s.clipping = 0; },   [](Settings& s) { s.layout = 0; },
      [](Settings& s) { s.observers = 0; },  [](Settings& s) { s.other_rows = false; },
      [](Settings& s) { s.optimizer = 0; },  [](Settings& s) { s.guarded = true; }};
  for (const auto change : simpler) still_fails(program, verdict, change);
  while (program.settings.steps > 3 && still_fails(program, verdict, [](Settings& s) { --s.steps; })) continue;
  return program;
}

}  // namespace duet::testing::fuzz
