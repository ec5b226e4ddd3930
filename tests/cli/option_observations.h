#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "base/device.h"
#include "base/error.h"
#include "cli/build.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "cli/run_cli.h"
#include "core/task.h"
#include "core/trainer.h"
#include "data/data_loader.h"
#include "hooks/logger_hook.h"
#include "metrics/metric.h"
#include "tests/optim/groups/described_task.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/log_lines.h"
#include "tests/support/sample_state.h"
#include "tests/support/temp_dir.h"

// What option_walk_test.cpp looks at: what comes of a config, told as bytes and text, and the models, data and files
// that its configs name.

namespace duet::option_walk {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

inline TempDir& scratch() {
  static TempDir dir;
  return dir;
}

// What has been observed so far.
inline std::string& told() {
  static std::string text;
  return text;
}

template <class... Parts>
void tell(const Parts&... parts) {
  told() += c10::str(parts...) + "\n";
}

template <class Tensors>
void tell_tensors(const Tensors& tensors) {
  for (const auto& [name, tensor] : tensors) tell(name, tensor.scalar_type(), tensor.sizes(), tensor_bytes(tensor));
}

// Numbers that have no order but the same bits everywhere.
inline at::Tensor mixed(std::vector<int64_t> shape, int64_t shift = 0) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return at::arange(count).add(shift).mul(7919).remainder(101).div(50.5).sub(1).to(at::kFloat).view(shape);
}

struct ProbeNet : torch::nn::Module {
  torch::nn::Linear hidden{4, 5}, head{5, 3}, unused{2, 1};
  torch::nn::BatchNorm1d norm{5};
  torch::nn::Embedding words{7, 4};
  bool has_sparse, varies;

  explicit ProbeNet(const ConfigNode& node)
      : words(torch::nn::EmbeddingOptions(7, 4).sparse(true)),
        has_sparse(node.read<bool>("sparse", false)),
        varies(node.read<bool>("varies", false)) {
    if (has_sparse) {
      register_module("words", words);
      return;
    }
    register_module("hidden", hidden);
    register_module("norm", norm);
    register_module("head", head);
    if (node.read<bool>("unused", false)) register_module("unused", unused);
  }
  at::Tensor forward(const Batch& batch) {
    tell(is_training(), norm->is_training());
    tell_tensors(batch.items());
    if (has_sparse) return words(batch["target"]);
    const at::Tensor input = batch["input"];
    // Its shape depends on values, so that no capture holds it.
    const at::Tensor more = varies ? input.masked_select(input > 0).sum() * 0 : at::zeros({});
    const at::Tensor made = head(at::relu(norm(hidden(input)))) + more;
    tell(made.scalar_type());
    return made;
  }
};

// A task that tells of each of its calls.
inline std::unique_ptr<Task> make_probe(ConfigNode& node, ModelContext&) {
  return make_task(
      std::make_shared<ProbeNet>(node), [](ProbeNet& net, const Batch& batch) { return net.forward(batch); },
      [](const at::Tensor& made, const Batch& batch) {
        return torch::nn::functional::cross_entropy(made.to(at::kFloat), batch["target"]) * batch["factor"].mean();
      });
}

// Eight samples: three full batches of two and three thirds, if you like. `bad`: the sample whose factor is `factor`.
inline std::shared_ptr<const Dataset> make_toy(const ConfigNode& node, int64_t shift) {
  const std::string input = node.read<std::string>("input", "numbers"),
                    target = node.read<std::string>("target", "class");
  const auto count = node.read<int64_t>("count", 8);
  at::Tensor factor = at::ones({count});
  if (const auto bad = node.read<int64_t>("bad", -1); bad >= 0) factor[bad] = node.read<double>("factor", 1.0 / 0.0);
  NamedTensors tensors = {{"input", mixed({count, 4}, shift)},
                          {"image", mixed({count, 3, 8, 8}, shift).abs()},
                          {"factor", factor},
                          {"skew", at::arange(count).add(1)},
                          {"skewed", mixed({count, 4}, shift + 2)},
                          {"other", mixed({count}, 9).mul(50).to(at::kLong).remainder(3).abs()},
                          {"target", mixed({count}, 3).mul(50).to(at::kLong).remainder(3).abs()}};
  if (input == "tokens") tensors[0].second = mixed({count, 5}).mul(50).to(at::kLong).abs().remainder(7);
  if (target == "tokens") tensors.back().second = mixed({count, 5}, 1).mul(50).to(at::kLong).abs().remainder(7);
  if (target == "mask") tensors.back().second = mixed({count, 8, 8}).mul(50).to(at::kLong).abs().remainder(3);
  if (target == "number") tensors.back().second = mixed({count}).abs().div(2);
  if (input == "pixels") tensors[1].second = mixed({count, 8, 8, 3}).add(1).mul(60).to(at::kByte);
  return std::make_shared<TensorDataset>(tensors);
}

inline std::shared_ptr<std::vector<LogRecord>> records() {
  static const auto kept = std::make_shared<std::vector<LogRecord>>();
  return kept;
}

inline std::unique_ptr<DataSource> make_told_loader(ConfigNode&, LoaderContext& context) {
  tell("loader of ", context.options.num_workers, " workers, ", context.options.prefetch, " batches ahead");
  return std::make_unique<DataLoader>(context.dataset, std::move(context.sampler), context.options);
}

// Once per process.
inline void register_own_types() {
  register_model("Probe", make_probe);
  register_dataset("Toy", [](ConfigNode& node) { return make_toy(node, 0); });
  register_dataset("OtherToy", [](ConfigNode& node) { return make_toy(node, 5); });
  register_loader("Told", make_told_loader);
  register_sink("Memory", [](ConfigNode&) { return std::make_unique<testing::MemorySink>(records()); });
}

// Ways to observe what a config makes. All tell.

// Without the time that a line begins with. What is only information may be there for no other reason than an option.
inline void tell_log(const std::string& log, bool all) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const bool is_ours = line.size() > 20 && line[4] == '-';  // not of the profiler's library
    if (is_ours && (all || line.find(" info ") != 19)) tell(line.substr(20));
  }
}

inline void tell_records() {
  static const std::set<std::string> kTimes = {"time", "data_time", "epoch_time", "samples_per_second", "memory",
                                               "eta",  "seconds",   "run_id",     "median_time",        "max_time"};
  for (const LogRecord& record : *records()) {
    if (record.kind == "progress") continue;
    tell(record.kind, " ", record.step);
    for (const auto& [name, value] : record.values) {
      if (kTimes.contains(name)) continue;
      tell(name);
      std::visit([](const auto& v) { tell(v); }, value);
    }
    for (const LogImage& image : record.images) tell(image.name, tensor_bytes(image.pixels));
    for (const auto& [name, histogram] : record.histograms) tell(name, " ", histogram.counts);
  }
  records()->clear();
}

// Names, whether one of these words is in a file whose content differs from run to run, and pictures and predictions.
inline void tell_files(const std::string& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string name = entry.path().string(), bytes = entry.is_directory() ? "" : read_bytes(name);
    const std::size_t time = std::min(name.find("/events."), name.find("/offline-"));
    for (const char* word : {"Input Dims", "[memory]", "Call stack", "Module Hierarchy", "walked"})
      files.insert(name.substr(0, time) + word + std::to_string((name + bytes).find(word) != std::string::npos));
    if (!name.ends_with(".png") && name.find("predictions") == std::string::npos) bytes.clear();
    files.insert(name.substr(0, time) + bytes);
  }
  for (const std::string& file : files) tell(file);
}

inline void tell_hooks(const HookList& hooks) {
  for (const std::string& name : hooks.order()) {
    tell(name, " ", hooks.priority_of(name));
    for (int point = 0; point < static_cast<int>(HookPoint::kCount); ++point) {
      tell(hooks.find(name)->uses(static_cast<HookPoint>(point)));
    }
  }
}

// As `duet train`, `duet eval` and `duet predict` do.
inline void tell_run(const ConfigNode& root) {
  const RunConfig config = parse_run_config(root, "walk");
  duet::Run run = build_training(config);
  add_hooks(config, run);
  load_start_weights(config, *run.trainer);
  tell_hooks(run.trainer->hooks());
  run.trainer->on(HookPoint::kBeforeTrainIter, [](TrainContext& at) { tell(at.progress.step, at.mode); }, "told", 1);
  train_on(*run.train, config, run);
  tell(run.trainer->progress().step, run.trainer->stop_reason(), to_string(run.trainer->outcome()));
  tell_tensors(run.trainer->state_dict().tensors());
  RunConfig testing = config;
  testing.metrics = config.test_metrics;
  duet::Run test = build_evaluation(testing, config.test);
  test.trainer->load_weights(run.trainer->weights());
  for (const auto& [name, value] : test_on(config.test, test)) tell(name, value);
  duet::Run prediction = build_evaluation(config, {*config.predict});
  prediction.trainer->load_weights(run.trainer->weights());
  prediction.trainer->predict(*prediction.test.front(),
                              [](const Batch&, const NamedTensors& outputs) { tell_tensors(outputs); });
}

// A rank whose sums and broadcasts show.
inline void tell_ranks(const ConfigNode& root) {
  const auto ranks = std::make_shared<testing::FakeCommunicator>(
      0, 1, [](const at::Tensor& values) { tell("sum of ", values.numel()); },
      [](const at::Tensor& values, int64_t) { tell("broadcast of ", values.numel()); });
  RunConfig config = parse_run_config(root, "walk");
  config.trainer.distributed.communicator = ranks;
  duet::Run run = build_training(config);
  train_on(*run.train, config, run);
  tell_tensors(run.trainer->weights().tensors());
}

// What only several ranks or a GPU act on.
inline void tell_parsed(const ConfigNode& root) {
  const RunConfig config = parse_run_config(root, "walk");
  tell(config.connect.timeout, " ", config.connect.start_timeout, " ", static_cast<int>(config.graph.fuse), " ",
       config.graph.fuse_after);
  for (const auto* data : {&config.train, &config.predict}) tell((*data)->loader.pin_memory);
  for (const auto* data : {&config.val, &config.test}) tell(data->front().loader.pin_memory);
}

inline void tell_command(const ConfigNode& root) {
  const std::string file = scratch().write("walk.yaml", root.dump());
  std::string words[] = {"duet", "train", file};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data()};
  ::testing::internal::CaptureStdout();
  const int code = run_cli(3, arguments);
  ::testing::internal::GetCapturedStdout();
  tell(code);
}

inline void tell_samples(const ConfigNode& root) {
  duet::Run run;
  read_training_data(parse_run_config(root, "walk"), run);
  for (int64_t i = 0; i < run.train_data->size(); ++i) tell_tensors(run.train_data->get({i}).items());
  tell(run.train_data->class_names(), run.train_data->max_label());
}

inline duet::Run opened(const RunConfig& config) {
  duet::Run run;
  read_training_data(config, run);
  build_loaders(config, run);
  run.train->start_epoch(0);
  return run;
}

inline void tell_batches(const ConfigNode& root) {
  const duet::Run run = opened(parse_run_config(root, "walk"));
  while (const std::optional<Batch> batch = run.train->next()) tell_tensors(batch->items());
}

inline void tell_model(const ConfigNode& root) {
  const RunConfig config = parse_run_config(root, "walk");
  const duet::Run run = opened(config);
  seed_all(1);
  const std::unique_ptr<Task> task = make_model(config.model, {run.train_data.get()});
  tell_tensors(task->named_parameters());
  tell_tensors(task->named_buffers());
  const Batch batch = *run.train->next();
  task->train(true);
  const StepOutput output = task->training_step(batch);
  tell(tensor_bytes(output.loss));
  tell_tensors(output.outputs);
  tell(task->weight(batch));
}

inline void tell_groups(const ConfigNode& root) {
  const TrainerOptions options = parse_run_config(root, "walk").trainer;
  testing::DescribedTask task({{"", "MAE"},
                               {"norm", "LayerNorm", ModuleKind::kNorm},
                               {"depth", "Conv2d", ModuleKind::kDepthwiseConv2d},
                               {"offset", "DeformConv2d", ModuleKind::kDeformableConv2d}});
  const at::Tensor tied = task.add("head.weight", {2, 2});
  task.add("head.bias", {2});
  task.add("norm.weight", {2});
  task.add("depth.weight", {2, 1, 3, 3});
  task.add("offset.weight", {2, 1, 3, 3});
  task.add("pos_embed", {1, 2, 2});
  task.add("blocks.0.pos_embed", {1, 2, 2});
  task.add("blocks.1.attn.weight", {2, 2});
  task.add("norm.tied", tied);
  const ParamGroups groups = options.param_groups ? options.param_groups(task, options.optimizer) : ParamGroups();
  for (const ParamGroup& group : groups) {
    for (const auto& [number, value] : group.numbers) tell(group.name, number, value);
    for (const auto& [name, tensor] : group.parameters) tell(name);
  }
}

inline void tell_figures(const ConfigNode& root) {
  const RunConfig config = parse_run_config(root, "walk");
  const std::unique_ptr<Metric> metric = register_metric.make(config.metrics.front().node);
  const at::Tensor classes = at::arange(9).remainder(3), other = mixed({9, 3}, 4);
  const at::Tensor scores = at::one_hot(classes, 3).add(mixed({9, 3}).div(5));
  scores[0] = scores[2].clone();  // the one that is wrong
  const Batch batch = {{"target", classes},
                       {"other", classes.flip(0)},
                       {"number", mixed({9, 3}, 2)},
                       {"other_number", mixed({9, 3}, 3)}};
  const NamedTensors outputs = {
      {"prediction", scores}, {"other", other}, {"loss", at::scalar_tensor(0.5)}, {"more", at::scalar_tensor(0.7)}};
  metric->reset();
  metric->add(batch, outputs, 9);
  for (const auto& [name, value] : metric->compute()) tell(name, value);
  tell(metric->text());
}

inline const std::map<std::string, void (*)(const ConfigNode&)>& observations() {
  static const std::map<std::string, void (*)(const ConfigNode&)> kAll = {
      {"run", tell_run},         {"log", tell_run},         {"ranks", tell_ranks}, {"parsed", tell_parsed},
      {"command", tell_command}, {"samples", tell_samples}, {"model", tell_model}, {"batches", tell_batches},
      {"groups", tell_groups},   {"figures", tell_figures}};
  return kAll;
}

}  // namespace duet::option_walk
