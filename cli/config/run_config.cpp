#include "cli/config/run_config.h"
#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/config/config_data.h"
#include "cli/registry.h"

namespace duet {

namespace {

// Counts are multiplied with one another.
constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

// As in Lightning a share has a dot: 1 is one batch, 1.0 all of them.
BatchLimit read_limit(const ConfigNode& node, const std::string& key) {
  BatchLimit limit;
  limit.node = node;
  limit.key = key;
  const std::optional<std::string> text = node.find<std::string>(key);
  if (!text) return limit;
  if (const std::optional<int64_t> count = parse_number<int64_t>(*text)) {
    if (*count >= 1 && *count <= kMaxInt) limit.count = *count;
  } else if (const std::optional<double> share = parse_number<double>(*text)) {
    if (*share > 0 && *share <= 1) limit.share = *share;
  }
  if (limit.count > 0 || limit.share > 0) return limit;
  node.fail_value(key, "a count of at least 1, or a share above 0.0 up to 1.0; remove the key to take all");
}

// true means one step.
int64_t read_dry_run(const ConfigNode& node) {
  const std::optional<std::string> text = node.find<std::string>("fast_dev_run");
  if (!text || *text == "false" || *text == "0") return 0;
  if (*text == "true") return 1;
  const std::optional<int64_t> steps = parse_number<int64_t>(*text);
  if (steps && *steps >= 1 && *steps <= kMaxInt) return *steps;
  node.fail_value("fast_dev_run", "true, false or a number of steps");
}

// `trainer`, but for the device and the optimizer.
void read_loop(const ConfigNode& node, RunConfig& config) {
  LoopOptions& loop = config.trainer.loop;
  loop = read_options<LoopOptions>(node);
  loop.max_seconds = node.read_seconds("max_time");
  config.limits.train = read_limit(node, "limit_train_batches");
  config.limits.val = read_limit(node, "limit_val_batches");
  config.limits.test = read_limit(node, "limit_test_batches");
  config.limits.predict = read_limit(node, "limit_predict_batches");
  config.dry_run = read_dry_run(node);
  if (!node.child("overfit_batches").is_set()) return;
  config.limits.train = config.limits.val = read_limit(node, "overfit_batches");
  if (!config.train) return;
  if (config.train->sampler != "default")
    config.train->node.fail("sampler", "is " + config.train->sampler + ", expected default with overfit_batches");
  config.train->shuffle = false;
}

// `sampler` or `loader`: a name, or a map with a type, whose other keys are for a registered one to read.
std::string read_kind(const ConfigNode& node, const std::string& kind, const std::vector<std::string>& ours) {
  const ConfigNode one = node.child(kind);
  const bool is_map = one.kind() == ConfigNode::Kind::kMap;
  const std::string name = is_map ? one.need<std::string>("type") : node.read<std::string>(kind, "default");
  std::vector<std::string> known = registered(kind);
  if (is_map && std::find(known.begin(), known.end(), name) != known.end()) one.check_later();
  known.insert(known.begin(), ours.begin(), ours.end());
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  (is_map ? one : node).fail_value(is_map ? "type" : kind, "a " + kind + "; " + known_and_nearest(name, known));
}

// A stream decides itself on its order and how it reads ahead.
void warn_of_stream_keys(const ConfigNode& node) {
  for (const char* key : {"shuffle", "sampler", "loader", "class_weights", "sample_weights", "samples_per_epoch",
                          "num_workers", "prefetch", "drop_last", "pin_memory"}) {
    if (!node.child(key).is_set()) continue;
    log_warning(c10::str(node.path(), ".", key, " has no effect on a stream, which decides itself; remove the key"));
  }
}

// Of a dataset; the defaults of these keys stand in the config that a run saves.
void check_drawing(const ConfigNode& node, const DataConfig& data, bool train) {
  const bool is_set[] = {!data.class_weights.empty(), !data.sample_weights.empty(), data.samples_per_epoch != 0};
  for (std::size_t i = 0; i < std::size(is_set); ++i) {
    const std::string& key = keys_of_drawing()[i];
    const bool acts = data.sampler == "weighted" || (data.sampler == "class_balanced" && key == "samples_per_epoch");
    if (!is_set[i] || (train && acts)) continue;
    if (!train) node.fail(key, "is set, but an evaluation sees each sample once; remove it");
    log_warning(node.path() + "." + key + " has no effect with sampler: " + data.sampler + "; set sampler: weighted");
  }
}

std::optional<DataConfig> read_data(const ConfigNode& node, bool train) {
  if (!node.is_set()) return std::nullopt;
  DataConfig data;
  data.node = node;
  data.loader.pin_memory = true;  // only serves copies to a GPU; the builder turns it off without one
  data.shuffle = train;
  const bool is_stream = is_source(node);
  if (is_stream) warn_of_stream_keys(node);
  read_fields(node, DataConfig::fields(), &data);
  data.sampler = read_kind(node, "sampler", builtin_samplers());
  data.loader_type = read_kind(node, "loader", {"default"});
  data.infinite = data.sampler == "infinite";
  if (data.sampler != "default" && !train) {
    node.fail("sampler", "is " + data.sampler + ", expected default: an evaluation sees each sample once");
  }
  if (!is_stream) check_drawing(node, data, train);
  node.check_later();
  return data;
}

// Whether the map holds datasets under names of their own, and no dataset.
bool holds_named(const ConfigNode& node) {
  if (node.kind() != ConfigNode::Kind::kMap || node.has("type")) return false;
  const std::vector<std::string> keys = node.keys();
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
    return key != "sampler" && node.child(key).kind() == ConfigNode::Kind::kMap && node.child(key).has("type");
  });
}

// One dataset, or a map of them by name.
std::vector<DataConfig> read_datasets(const ConfigNode& node) {
  if (!node.is_set()) return {};
  if (!holds_named(node)) {
    if (!node.has("type")) node.fail_missing("type", "name a dataset, or give datasets by name: {clean: {type: ...}}");
    return {*read_data(node, false)};
  }
  std::vector<DataConfig> datasets;
  for (const std::string& name : node.keys()) {
    const ConfigNode one = node.child(name);
    if (one.is_null()) continue;  // of a base
    if (one.kind() != ConfigNode::Kind::kMap)
      node.fail(name, "stands beside datasets that have names, expected a map: one of them");
    datasets.push_back(*read_data(one, false));
    datasets.back().name = name;
    const bool is_word = std::all_of(name.begin(), name.end(), [](unsigned char letter) {
      return std::isalnum(letter) != 0 || letter == '_' || letter == '-';
    });
    if (!is_word || name.empty()) node.fail(name, "names a dataset, expected letters, digits, _ and -; rename it");
  }
  return datasets;
}

// A path, or a map {path, strict, which, prefix, revise_keys}, the last being a map of regular expressions and what
// each becomes: {'^backbone\.': ''}.
std::optional<LoadFromConfig> read_load_from(const ConfigNode& root) {
  const ConfigNode node = root.child("load_from");
  LoadFromConfig config;
  if (node.kind() != ConfigNode::Kind::kMap) {
    const std::optional<std::string> path = root.find<std::string>("load_from");
    if (!path) return std::nullopt;
    config.source.path = *path;
  } else {
    config = read_options<LoadFromConfig>(node);
    std::string& prefix = config.source.prefix;
    prefix = node.read<std::string>("prefix", prefix);
    if (prefix.size() > 1 && prefix.back() == '.') prefix.pop_back();  // as it stands in a name
    if (const ConfigNode rules = node.child("revise_keys"); rules.is_set()) {
      config.source.revise_keys.emplace();
      for (const std::string& pattern : rules.keys()) {
        config.source.revise_keys->push_back({pattern, rules.need<std::string>(pattern)});
      }
    }
  }
  if (config.source.path.empty()) root.fail("load_from", "names no file, expected a checkpoint or a file of weights");
  return config;
}

constexpr double kMiB = 1 << 20;

int64_t read_mebibytes(const ConfigNode& node, const char* key, int64_t bytes) {
  const double size =
      node.read_number(key, static_cast<double>(bytes) / kMiB, {.low = 0, .high = kMiB, .above_low = true});
  return static_cast<int64_t>(std::ceil(size * kMiB));
}

// The section `distributed`, which has no effect on a run of one process.
void read_distributed(const ConfigNode& node, DistributedOptions& options, ConnectOptions& connect) {
  options = read_options(node, options);
  options.bucket_bytes = read_mebibytes(node, "bucket_cap_mb", options.bucket_bytes);
  options.first_bucket_bytes = read_mebibytes(node, "first_bucket_mb", options.first_bucket_bytes);
  for (const auto& [key, seconds] : {std::pair("timeout", &connect.timeout), {"start_timeout", &connect.start_timeout}})
    *seconds = node.read_number(key, *seconds, {.low = 0, .high = 1e6, .above_low = true});
}

}  // namespace

int64_t BatchLimit::batches_of(const DataSource& data) const {
  const int64_t batches = as_written(data);
  if (most == 0) return batches;
  return batches == 0 ? most : std::min(batches, most);
}

int64_t BatchLimit::as_written(const DataSource& data) const {
  if (share <= 0) return count;
  const int64_t all = data.batches_per_epoch();
  if (all <= 0) node.fail(key, "is a share, but the data has no known number of batches; give a count");
  const auto batches = static_cast<int64_t>(std::floor(static_cast<double>(all) * share));
  if (batches >= 1) return batches;
  node.fail(key, c10::str("is ", share, " of ", all, " batches, which is not one; give a larger share or a count"));
}

const OptionFields& LoadFromConfig::fields() {
  using O = LoadFromConfig;
  return described<O>("LoadFromConfig", [](const auto& add) {
    const auto of = [](auto member) { return [member](O& o) -> auto& { return o.source.*member; }; };
    add("path", of(&WeightsSource::path), "a checkpoint or a file of weights").needed();
    add("strict", &O::strict, "every tensor must be there");
    add("which", of(&WeightsSource::which), "the model, or an average of it");
    add.key("prefix", "text", "only the names below this one, without it; after revise_keys");
    add.key("revise_keys", "map", "regular expressions of names, and what each becomes");
  });
}

const std::vector<std::string>& builtin_samplers() {
  static const std::vector<std::string> kNames = {"default", "infinite", "class_balanced", "weighted"};
  return kNames;
}

const std::vector<std::string>& keys_of_drawing() {
  static const std::vector<std::string> kKeys = {"class_weights", "sample_weights", "samples_per_epoch"};
  return kKeys;
}

const OptionFields& DataConfig::fields() {
  using O = DataConfig;
  return described<O>("DataConfig", [](const auto& add) {
    const auto of = [](auto member) { return [member](O& o) -> auto& { return o.loader.*member; }; };
    using L = DataLoaderOptions;
    add("batch_size", of(&L::batch_size), "samples of a micro-batch").in(at_least(1)).called("integer, per process");
    add("num_workers", of(&L::num_workers), "threads that read ahead").in(between(0, 256));
    add("prefetch", of(&L::prefetch), "batches ahead per worker").in(between(1, 1024));
    add("drop_last", of(&L::drop_last), "leaves out a last batch that is not full");
    add("pin_memory", of(&L::pin_memory), "page-locked memory, for copies to a GPU");
    add("shuffle", &O::shuffle, "another order in every epoch");
    add.key("sampler", join(builtin_samplers()) + ", or a registered one, by name or as a map with type",
            "default: each sample once per epoch; infinite: likewise, without epochs; class_balanced, weighted: with "
            "replacement, all classes alike or by class_weights",
            "default");
    add("class_weights", &O::class_weights, "how often sampler weighted draws each class, to one another")
        .in(at_least(0));
    add("sample_weights", &O::sample_weights,
        "how often sampler weighted draws each sample, in the place of class_weights: a tensor of the dataset, or a "
        "file of numpy.save: weights.npy");
    add("samples_per_epoch", &O::samples_per_epoch,
        "of sampler class_balanced and weighted; 0: as many as the dataset has")
        .in(at_least(0));
    add.key("type", "text", "the dataset").needed();
    add.key("loader", "default, or a registered one, by name or as a map with type", "what reads the batches",
            "default");
    add.key("rename", "map", "other names of its tensors, done first: {input: image}");
    add.key("cast", "map", "other dtypes of its tensors, by their new names: {target: int64}");
    add.key("transforms", "list of maps with type", "done to each sample after rename and cast, in this order");
  });
}

const OptionFields& RunConfig::fields() {
  using O = RunConfig;
  return described<O>("RunConfig", [](const auto& add) {
    add("work_dir", &O::work_dir, "where everything is written");
    add("mode", &O::mode, "how steps are run").one_of({"eager", "graph"});
    add("seed", &O::seed, "of weights, data order and dropout").in(between(0, 9.2e18));
    add(
        "freeze", [](O& o) -> auto& { return o.trainer.freeze; },
        "modules and parameters that are not trained, with * for any text: [backbone, \"*.norm1\"]; such modules keep "
        "their statistics")
        .one_or_list();
    add(
        "device", [](O& o) -> auto& { return o.trainer.device; }, "what it runs on")
        .called("auto, cpu, cuda, cuda:<index>");
  });
}

namespace {

void check_names_of_metrics(const RunConfig& config) {
  const std::vector<std::string> names = with_class_patterns(val_metric_names(config));
  check_monitors(config.schedules, names);
  check_builtin_hooks(config.hooks, names);
}

void compare_with_training(const RunConfig& config) {
  for (const auto* evaluated : {&config.val, &config.test}) {
    share_split(*config.train, *evaluated);
    for (const DataConfig& data : *evaluated) compare_normalize(*config.train, data);
  }
  if (config.predict) compare_normalize(*config.train, *config.predict);
}

}  // namespace

RunConfig parse_run_config(const ConfigNode& root, const std::string& name, int64_t world_size) {
  RunConfig config;
  config.root = root;
  config.work_dir = "runs/" + name;
  read_fields(root, RunConfig::fields(), &config);
  if (config.work_dir.empty()) root.fail("work_dir", "is empty, expected a folder; name one or remove the key");
  root.child("device").located([&] { parse_device(config.trainer.device); });

  config.model = root.child("model");
  if (!config.model.is_set()) root.fail_missing("model", "add model: {type: ...}");
  config.model.need<std::string>("type");
  config.model.check_later();

  config.load_from = read_load_from(root);

  const ConfigNode data = root.child("data");
  config.train = read_data(data.child("train"), true);
  config.val = read_datasets(data.child("val"));
  config.test = read_datasets(data.child("test"));
  config.predict = read_data(data.child("predict"), false);
  if (config.train) compare_with_training(config);

  read_loop(root.child("trainer"), config);
  fit_batch_size(root, world_size, config);
  config.trainer.work_dir = config.work_dir;
  read_optim_wrapper(root.child("optim_wrapper"), config.trainer);
  const int64_t batch_size = config.train ? config.train->loader.batch_size : 1;
  scale_learning_rates(root, batch_size * config.trainer.loop.accumulate * world_size, config.trainer);
  config.schedules = read_schedules(root);
  config.metrics = read_metrics(root);
  config.test_metrics = read_test_metrics(root, config.metrics);
  config.hooks = read_hooks(root);
  config.graph = read_all_options<GraphOptions>(root.child("graph"));
  read_distributed(root.child("distributed"), config.trainer.distributed, config.connect);
  check_names_of_metrics(config);
  root.reject_unknown();
  return config;
}

std::vector<std::string> val_metric_names(const RunConfig& config) {
  const std::vector<std::string> own = metric_names(config.metrics);
  if (config.val.empty() || config.val.front().name.empty()) return own;
  std::vector<std::string> names;
  for (const DataConfig& data : config.val) {
    for (const std::string& name : own) names.push_back(data.name + "/" + name);
  }
  return names;
}

RunConfig in_scratch(RunConfig config, const std::string& folder) {
  config.work_dir = config.trainer.work_dir = folder;
  config.scratch = true;
  return config;
}

void override_load_from(ConfigNode& root, const std::string& path) {
  const bool is_map = root.child("load_from").kind() == ConfigNode::Kind::kMap;
  root.override_with((is_map ? "load_from.path=" : "load_from=") + yaml_text(path), "--load-from");
}

}  // namespace duet
