#include "hooks/prediction_hooks.h"
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/max.h>
#include <ATen/ops/softmax.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/detail/concat_text.h"
#include "base/detail/pattern.h"
#include "base/error.h"
#include "base/log.h"
#include "core/train_context.h"
#include "data/data_source.h"
#include "distributed/communicator.h"
#include "hooks/detail/shared.h"
#include "io/file_io.h"
#include "io/png.h"
#include "io/read_file.h"
#include "io/safetensors.h"

namespace duet {

bool is_prediction_of_batch(const std::string& name) {
  static const Pattern kName("batch-[0-9]{6,}\\.safetensors");
  return kName.matches(name);
}

namespace {

namespace fs = std::filesystem;

std::string batch_file(int64_t index) {
  char name[64];
  std::snprintf(name, sizeof(name), "batch-%06lld.safetensors", static_cast<long long>(index));
  return name;
}

// A longer pass of before would leave more of them than this one writes.
void remove_batch_files(const std::string& folder) {
  std::error_code ignored;
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (is_prediction_of_batch(entry.path().filename().string())) old.push_back(entry.path());
  }
  for (const fs::path& path : old) fs::remove(path, ignored);
}

// Of its own: what a model gives out may be a buffer that the next batch changes.
at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.detach().to(tensor.options().device(at::kCPU), /*non_blocking=*/false, /*copy=*/true).contiguous();
}

const at::Tensor& output_of(const TrainContext& context, const std::string& name, const char* option) {
  if (const at::Tensor* output = find(*context.evaluation.outputs, name)) return *output;
  throw ConfigError(not_found("PredictionWriterHook", "output", name, *context.evaluation.outputs) + "; correct " +
                    option);
}

std::vector<std::string> class_names(const TrainContext& context) {
  return context.evaluation.data == nullptr ? std::vector<std::string>() : context.evaluation.data->class_names();
}

// Whether scores are known to be those of classes that exclude each other: numbers may be predicted, too.
bool is_classification(const TrainContext& context, int64_t scores) {
  const std::size_t names = class_names(context).size();
  if (scores == 1 && names > 0) return names == 2;  // it tells two classes apart and no more
  const at::Tensor* target = find(context.evaluation.batch->items(), "target");
  const bool numbered =
      target != nullptr && target->dim() == 1 && at::isIntegralType(target->scalar_type(), /*includeBool=*/false);
  return numbered || names > 0;
}

// Of scores [samples, classes]: the softmax, unless a model gives probabilities already.
at::Tensor probabilities_of(const at::Tensor& scores) {
  constexpr double kRounding = 1e-3;
  const bool are_shares = scores.ge(0).all().item<bool>() && (scores.sum(1) - 1).abs().le(kRounding).all().item<bool>();
  return are_shares ? scores : at::softmax(scores, 1);
}

void put_text(nlohmann::ordered_json& line, const char* key, const std::string& text) {
  if (!text.empty()) line[key] = text;
}

void put_class(nlohmann::ordered_json& line, int64_t number, const std::vector<std::string>& names) {
  line["class"] = number;
  if (number < std::ssize(names)) put_text(line, "class_name", names[static_cast<std::size_t>(number)]);
}

// Of a regression, or of labels that do not exclude each other: the largest of them says nothing.
void put_numbers(nlohmann::ordered_json& line, at::ArrayRef<double> numbers) {
  if (numbers.size() == 1) line["value"] = json_number(numbers[0]);
  for (const double number : numbers) {
    if (numbers.size() > 1) line["values"].push_back(json_number(number));
  }
}

// Whether the batches of one output can stand below each other.
bool joins(const at::Tensor& first, const at::Tensor& other) {
  if (first.dim() != other.dim() || first.scalar_type() != other.scalar_type()) return false;
  return first.dim() == 0 || first.sizes().slice(1) == other.sizes().slice(1);
}

}  // namespace

const OptionFields& PredictionWriterHookOptions::fields() {
  using O = PredictionWriterHookOptions;
  return described<O>("PredictionWriterHook", [](const auto& add) {
    add("folder", &O::folder, "where files go; default <work_dir>/predictions");
    add("format", &O::format, "tensors, a line of class or numbers per sample, or both")
        .one_of({"safetensors", "jsonl", "both"});
    add("per_batch", &O::per_batch, "a file for each batch, not one for the pass");
    add("keys", &O::keys, "outputs to write; empty: all");
    add("with_inputs", &O::with_inputs, "the tensors of the batch too");
    add("class_key", &O::class_key,
        "jsonl: the output [samples, classes] whose largest element is the class, or [samples, values]");
    add.rule([](const O& o) {
      if (!o.per_batch || o.format != "jsonl") return;
      throw ConfigError(
          "[PredictionWriterHook] found per_batch with format jsonl, expected it with files of tensors; set format "
          "to safetensors or both, or leave per_batch out");
    });
  });
}

PredictionWriterHook::PredictionWriterHook(PredictionWriterHookOptions options) : options_(std::move(options)) {
  check_options(options_);
}

void PredictionWriterHook::before_predict_epoch(TrainContext& context) {
  kept_.clear();
  lines_.clear();
  samples_ = 0;
  folder_ = output_folder("PredictionWriterHook", options_.folder, context, "predictions");
  if (const std::string rank = rank_name(context); !rank.empty()) {
    folder_ = output_folder("PredictionWriterHook", folder_ + "/" + rank, context, "");
  }
  if (options_.per_batch) remove_batch_files(folder_);
}

void PredictionWriterHook::after_predict_iter(TrainContext& context) {
  if (options_.format != "safetensors") add_classes(context);
  if (options_.format == "jsonl") return;
  const NamedTensors tensors = selected(context);
  if (options_.per_batch) {
    write_safetensors(folder_ + "/" + batch_file(context.evaluation.batch_index), tensors);
  } else {
    keep(tensors);
  }
}

void PredictionWriterHook::after_predict_epoch(TrainContext& context) {
  if (options_.format != "safetensors") {
    duet::write_file("PredictionWriterHook", [&] { file_io::replace_file(folder_ + "/predictions.jsonl", lines_); });
  }
  if (options_.format != "jsonl" && !options_.per_batch) write_whole();
  log_info(
      c10::str("[PredictionWriterHook] predictions of ", context.evaluation.batch_index, " batches are in ", folder_));
}

NamedTensors PredictionWriterHook::selected(const TrainContext& context) const {
  NamedTensors tensors;
  if (options_.keys.empty()) tensors = *context.evaluation.outputs;
  for (const std::string& key : options_.keys) {
    tensors.emplace_back(key, output_of(context, key, "keys"));
  }
  if (options_.with_inputs) {
    for (const auto& [name, tensor] : context.evaluation.batch->items()) tensors.emplace_back("input." + name, tensor);
  }
  return tensors;
}

void PredictionWriterHook::keep(const NamedTensors& tensors) {
  if (kept_.empty()) {
    for (const auto& entry : tensors) kept_.push_back({entry.first, {}});
  }
  const auto same_name = [](const auto& kept, const auto& given) { return kept.first == given.first; };
  require<DataError>(std::ranges::equal(kept_, tensors, same_name),
                     "[PredictionWriterHook] found a batch with other outputs than the first, expected the same names "
                     "each time; name those to write in keys, or set per_batch");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor value = on_host(tensors[i].second);
    std::vector<at::Tensor>& batches = kept_[i].second;
    if (!batches.empty() && !joins(batches.front(), value)) {
      throw DataError(c10::str("[PredictionWriterHook] found output '", tensors[i].first, "' of ", value.scalar_type(),
                               value.sizes(), " after one of ", batches.front().scalar_type(), batches.front().sizes(),
                               ", expected them to differ in their first dimension alone; set per_batch"));
    }
    batches.push_back(value);
  }
}

void PredictionWriterHook::add_classes(const TrainContext& context) {
  at::Tensor scores = output_of(context, options_.class_key, "class_key").detach();
  if (scores.dim() == 1) scores = scores.unsqueeze(1);  // one number for each sample
  if (scores.dim() != 2 || scores.size(1) == 0) {
    throw DataError(
        c10::str("[PredictionWriterHook] found output '", options_.class_key, "' of shape ", scores.sizes(),
                 ", expected [samples, classes] for jsonl; set format to safetensors, or another class_key"));
  }
  at::Tensor host = scores.to(at::kCPU, at::kDouble);
  const bool classifies = is_classification(context, host.size(1)), is_logit = classifies && host.size(1) == 1;
  if (is_logit) host = at::cat({at::zeros_like(host), host}, 1);  // of class 1 alone
  host = host.contiguous();
  const auto [largest, classes] = at::max(host, 1);
  at::Tensor probability;
  if (classifies) probability = at::amax(is_logit ? at::softmax(host, 1) : probabilities_of(host), {1});
  const DataSource* data = context.evaluation.data;
  const std::vector<int64_t>& ids = context.evaluation.batch->sample_ids();
  const std::vector<std::string> names = class_names(context);
  for (int64_t i = 0; i < host.size(0); ++i) {
    nlohmann::ordered_json line = {{"index", i < std::ssize(ids) ? ids[i] : samples_}};
    ++samples_;
    if (data != nullptr && i < std::ssize(ids)) put_text(line, "name", data->sample_name(ids[i]));
    if (classifies) {
      put_class(line, classes.const_data_ptr<int64_t>()[i], names);
      line["score"] = json_number(largest.const_data_ptr<double>()[i]);
      line["probability"] = json_number(probability.const_data_ptr<double>()[i]);
    } else {
      put_numbers(line, {host.const_data_ptr<double>() + i * host.size(1), static_cast<std::size_t>(host.size(1))});
    }
    lines_ += json_text(line) + "\n";
  }
}

void PredictionWriterHook::write_whole() {
  NamedTensors whole;
  for (auto& [name, batches] : kept_) {
    for (at::Tensor& batch : batches) batch = batch.dim() == 0 ? batch.reshape({1}) : batch;
    whole.emplace_back(name, at::cat(batches));
    batches.clear();
  }
  write_safetensors(folder_ + "/predictions.safetensors", whole);
  kept_.clear();
}

const OptionFields& VisualizationHookOptions::fields() {
  using O = VisualizationHookOptions;
  return described<O>("VisualizationHook", [](const auto& add) {
    const auto of = [](auto member) { return [member](O& o) -> auto& { return o.paint.*member; }; };
    using P = SamplePainterOptions;
    add("draw", &O::draw, "without it nothing happens");
    add("interval", &O::interval, "batches of a pass from one that is drawn to the next").in(at_least(1));
    add("max_samples", &O::max_samples, "samples of such a batch; 0: all")
        .in(at_least(0))
        .expects("0 (all) or a number of samples");
    add("show", &O::show, "opens each picture with the desktop's viewer (xdg-open)");
    add("wait_time", &O::wait_time, "seconds that the pass waits after each picture that is shown").in(at_least(0));
    add("alpha", of(&P::alpha), "weight of the colours over the image").in(between(0, 1));
    add("palette", of(&P::palette), "\"#rrggbb\" of class 0, 1, ...");
    add("ignore_index", of(&P::ignore_index), "class that is painted white");
    add("zoom", of(&P::zoom), "pixels for one of the image; 0: by its size")
        .in(between(0, 64))
        .expects("0 (chosen by size) to 64");
    add("image", of(&P::image), "tensor of the batch");
    add("target", of(&P::target), "tensor of the batch");
    add("prediction", of(&P::prediction), "tensor of the outputs");
    add.rule([](const O& o) {
      require<ConfigError>(!o.show || o.draw,
                           "[VisualizationHook] show is true without draw, expected both, since only what is drawn "
                           "can be shown; set draw: true");
    });
  });
}

namespace {

// Opens a file with the viewer that the desktop has for its kind; false: there is none. The shell ends at once, so that
// nobody waits for a viewer that stays open, and the viewer outlives this process.
bool open_on_desktop(std::string file) {
  std::string shell = "sh", flag = "-c";
  std::string script =
      "test \"$DISPLAY$WAYLAND_DISPLAY\" && command -v xdg-open >/dev/null || exit 1; "
      "xdg-open \"$1\" </dev/null >/dev/null 2>&1 &";
  char* const arguments[] = {shell.data(), flag.data(), script.data(), shell.data(), file.data(), nullptr};
  pid_t process = 0;
  if (::posix_spawn(&process, "/bin/sh", nullptr, nullptr, arguments, environ) != 0) return false;
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

VisualizationHook::VisualizationHook(VisualizationHookOptions options) : options_(std::move(options)) {
  check_options(options_);
  if (!options_.painter) options_.painter = sample_painter(options_.paint);
}

void VisualizationHook::after_iter(TrainContext& context, const std::string& mode) {
  const bool listened = context.log.wants_images();
  if (!options_.draw || !context.is_main || (context.work_dir.empty() && !listened)) return;
  if (context.evaluation.batch_index == 0) {
    samples_ = 0;
    names_.clear();
  }
  // All ranks are at a batch of their own now, and those before were of one size.
  const int64_t ranks = context.communicator->world_size();
  const int64_t first = ranks * std::exchange(samples_, samples_ + context.evaluation.batch->size());
  const int64_t batches = ranks * context.evaluation.batch_index;  // before these
  if ((batches + ranks) / options_.interval == batches / options_.interval) return;
  int64_t count = context.evaluation.batch->size();
  if (options_.max_samples > 0) count = std::min(count, options_.max_samples);
  const DataSource* data = context.evaluation.data;
  const Batch batch = data == nullptr ? *context.evaluation.batch : data->denormalized(*context.evaluation.batch);
  for (int64_t i = 0; i < count; ++i) {
    const std::optional<Painting> painting = painting_of(batch, *context.evaluation.outputs, i);
    if (!painting) continue;
    const std::string& dataset = context.evaluation.dataset;
    const std::string name = mode + (dataset.empty() ? "_" : "_" + dataset + "_") + name_of(context, i, first + i);
    if (!context.work_dir.empty() && !failed_) write_file(context, name, *painting);
    if (listened) context.log.image(name, painting->pixels);
  }
}

// A picture is not worth a run: a failure is told once, here and below.
std::optional<Painting> VisualizationHook::painting_of(const Batch& batch, const NamedTensors& outputs, int64_t row) {
  try {
    return options_.painter(batch, outputs, row);
  } catch (const std::exception& error) {
    if (!std::exchange(warned_, true)) {
      log_warning(c10::str(error.what(), ". The run goes on; samples like this one get no picture"));
    }
    return std::nullopt;
  }
}

// Of the sample in this row of the batch, the `number`th of the pass.
std::string VisualizationHook::name_of(const TrainContext& context, int64_t row, int64_t number) {
  constexpr std::size_t kLongest = 160;  // bytes; a file's name may have 255
  const std::vector<int64_t>& ids = context.evaluation.batch->sample_ids();
  std::string name;
  if (context.evaluation.data != nullptr && row < std::ssize(ids)) {
    name = context.evaluation.data->sample_name(ids[static_cast<std::size_t>(row)]);
  }
  name = std::filesystem::path(name).replace_extension().string();
  std::replace(name.begin(), name.end(), '/', '-');
  if (name.empty() || name.size() > kLongest) return std::to_string(number);
  if (!names_.insert(name).second) name += concat_text(".", number);
  return name;
}

void VisualizationHook::write_file(const TrainContext& context, const std::string& name, const Painting& painting) {
  const std::filesystem::path folder = std::filesystem::path(context.work_dir) / "vis_data";
  const std::string path = (folder / concat_text(name, "_", context.progress.step, ".png")).string();
  try {
    std::filesystem::create_directories(folder);
    write_png(path, painting.pixels, painting.legend);
    if (options_.show && shows_) show_file(path);
  } catch (const std::exception& error) {
    failed_ = true;
    log_error(c10::str("[VisualizationHook] cannot write pictures to '", folder.string(), "' (", error.what(),
                       "); no more are written"));
  }
}

void VisualizationHook::show_file(const std::string& path) {
  shows_ = open_on_desktop(path);
  if (shows_) return std::this_thread::sleep_for(std::chrono::duration<double>(options_.wait_time));
  log_warning(
      "[VisualizationHook] found show: true, expected a display and xdg-open (Debian's xdg-utils): pictures are in '" +
      std::filesystem::path(path).parent_path().string() + "' alone");
}

}  // namespace duet
