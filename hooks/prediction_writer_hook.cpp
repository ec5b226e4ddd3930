#include "hooks/prediction_writer_hook.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <ATen/ops/cat.h>
#include <ATen/ops/max.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/log.h"
#include "hooks/detail/output_folder.h"
#include "io/file_io.h"
#include "io/safetensors.h"

namespace duet {

bool is_prediction_of_batch(const std::string& name) {
  static const std::string kStart = "batch-", kEnd = ".safetensors";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd) || name.size() < kStart.size() + 6 + kEnd.size()) return false;
  return std::all_of(name.begin() + static_cast<std::ptrdiff_t>(kStart.size()),
                     name.end() - static_cast<std::ptrdiff_t>(kEnd.size()),
                     [](char c) { return c >= '0' && c <= '9'; });
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

const at::Tensor* find(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& item) { return item.first == name; });
  return found == tensors.end() ? nullptr : &found->second;
}

[[noreturn]] void no_such_output(const std::string& name, const NamedTensors& outputs, const char* option) {
  std::string known;
  for (const auto& entry : outputs) known += (known.empty() ? "" : ", ") + entry.first;
  throw ConfigError("[PredictionWriterHook] found no output '" + name + "', expected one of " + known + "; correct " +
                    option);
}

// JSON has no NaN and no infinities.
nlohmann::ordered_json json_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

void write_text(const std::string& path, const std::string& text) {
  try {
    file_io::replace_file(path, text.size(), [&](file_io::FileWriter& file) { file.write(text.data(), text.size()); });
  } catch (const file_io::IoError& error) {
    throw DataError(c10::str("[PredictionWriterHook] ", error.what(), "; free space there or choose another folder"));
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
  static const OptionFields kFields = OptionFields::of<O>("PredictionWriterHook", [](const FieldAdder<O>& add) {
    add("folder", &O::folder, "where files go; default <work_dir>/predictions");
    add("format", &O::format, "tensors, arg-max classes, or both").one_of({"safetensors", "jsonl", "both"});
    add("per_batch", &O::per_batch, "a file for each batch, not one for the pass");
    add("keys", &O::keys, "outputs to write; empty: all");
    add("with_inputs", &O::with_inputs, "the tensors of the batch too");
    add("class_key", &O::class_key, "the output whose largest element is the class");
    add.rule([](const O& o) {
      if (!o.per_batch || o.format != "jsonl") return;
      throw ConfigError(
          "[PredictionWriterHook] found per_batch with format jsonl, expected it with files of tensors; set format "
          "to safetensors or both, or leave per_batch out");
    });
  });
  return kFields;
}

PredictionWriterHook::PredictionWriterHook(PredictionWriterHookOptions options) : options_(std::move(options)) {
  options_.validate();
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
  if (options_.format != "safetensors") write_text(folder_ + "/predictions.jsonl", lines_);
  if (options_.format != "jsonl" && !options_.per_batch) write_whole();
  log_info(
      c10::str("[PredictionWriterHook] predictions of ", context.evaluation.batch_index, " batches are in ", folder_));
}

NamedTensors PredictionWriterHook::selected(const TrainContext& context) const {
  NamedTensors tensors;
  if (options_.keys.empty()) tensors = *context.evaluation.outputs;
  for (const std::string& key : options_.keys) {
    const at::Tensor* output = find(*context.evaluation.outputs, key);
    if (output == nullptr) no_such_output(key, *context.evaluation.outputs, "keys");
    tensors.emplace_back(key, *output);
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
  bool same = tensors.size() == kept_.size();
  for (std::size_t i = 0; same && i < tensors.size(); ++i) same = tensors[i].first == kept_[i].first;
  require<DataError>(
      same,
      "[PredictionWriterHook] found a batch with other outputs than the first, expected the same names each "
      "time; name those to write in keys, or set per_batch");
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
  const at::Tensor* scores = find(*context.evaluation.outputs, options_.class_key);
  if (scores == nullptr) no_such_output(options_.class_key, *context.evaluation.outputs, "class_key");
  if (scores->dim() != 2 || scores->size(1) == 0) {
    throw DataError(
        c10::str("[PredictionWriterHook] found output '", options_.class_key, "' of shape ", scores->sizes(),
                 ", expected [samples, classes] for jsonl; set format to safetensors, or another class_key"));
  }
  const auto [largest, index] = at::max(scores->detach(), 1);
  const at::Tensor values = largest.to(at::kCPU, at::kDouble);
  const at::Tensor classes = index.to(at::kCPU);
  for (int64_t i = 0; i < classes.numel(); ++i) {
    const nlohmann::ordered_json line = {{"index", samples_++},
                                         {"class", classes.const_data_ptr<int64_t>()[i]},
                                         {"score", json_number(values.const_data_ptr<double>()[i])}};
    lines_ += line.dump() + "\n";
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

}  // namespace duet
