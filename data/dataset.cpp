#include "data/dataset.h"
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "data/detail/encoding_json.h"
#include "io/read_file.h"
#include "io/safetensors.h"

namespace duet {

void Dataset::check_indices(const char* who, const std::vector<int64_t>& indices, int64_t size) {
  for (const int64_t index : indices) {
    if (index >= 0 && index < size) continue;
    throw DataError(c10::str("[", who, "] found sample index ", index, ", expected 0 to ", size - 1,
                             "; build the sampler with this dataset's size()"));
  }
}

std::vector<int64_t> Dataset::labels() const {
  constexpr int64_t kAtOnce = 1024;
  std::vector<int64_t> labels;
  for (int64_t first = 0; first < size(); first += kAtOnce) {
    std::vector<int64_t> indices(static_cast<std::size_t>(std::min(kAtOnce, size() - first)));
    std::iota(indices.begin(), indices.end(), first);
    const Batch batch = get(indices);
    if (!batch.has("target")) return {};
    if (!at::isIntegralType(batch["target"].scalar_type(), /*includeBool=*/false) || batch["target"].dim() != 1)
      return {};
    const at::Tensor target = batch["target"].to(at::kLong).contiguous();
    labels.insert(labels.end(), target.const_data_ptr<int64_t>(), target.const_data_ptr<int64_t>() + target.numel());
  }
  return labels;
}

TensorDataset::TensorDataset(const NamedTensors& tensors) {
  require<DataError>(!tensors.empty(), "[TensorDataset] found no tensor, expected at least one; pass some");
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    const std::string found = "[TensorDataset] tensor '" + name + "': found ";
    require<DataError>(names.insert(name).second, found + "two of this name, expected one; rename one");
    require<DataError>(tensor.defined(), found + "it undefined; give it a value");
    const auto& [first_name, first] = tensors.front();
    const bool has_samples = tensor.dim() > 0 && tensor.size(0) > 0;
    require<DataError>(has_samples, c10::str(found, "shape ", tensor.sizes(),
                                             ", expected one row per sample, at least one; is the file empty?"));
    if (tensor.size(0) != first.size(0)) {
      throw DataError(c10::str(found, "shape ", tensor.sizes(), ", '", first_name, "' has ", first.sizes(),
                               ", expected one row per sample in each; give all the same number of samples"));
    }
    tensors_.emplace_back(name, tensor.detach().cpu().contiguous());
  }
}

TensorDataset TensorDataset::from_file(const std::string& path) {
  const NamedTensors tensors = read_safetensors(path);
  try {
    return TensorDataset(tensors);
  } catch (const DataError& error) {
    throw DataError("[TensorDataset] file '" + path + "': " + error.what());
  }
}

Batch TensorDataset::get(const std::vector<int64_t>& indices) const {
  check_indices("TensorDataset", indices, size());
  const at::Tensor index = at::empty({static_cast<int64_t>(indices.size())}, at::TensorOptions(at::kLong));
  std::copy(indices.begin(), indices.end(), index.mutable_data_ptr<int64_t>());
  Batch batch;
  for (const auto& [name, tensor] : tensors_) batch.set(name, at::index_select(tensor, 0, index));
  return batch;
}

const OptionFields& TextDatasetOptions::fields() {
  using O = TextDatasetOptions;
  return described<O>("TextDataset", [](const auto& add) {
    add.about("Windows of a text, a token per byte: gives input int64 [N, context], target int64 [N, context].");
    add("path", &O::path, "a text file");
    add("split", &O::split, "which part of the file").one_of({"train", "val", "all"});
    add("val_fraction", &O::val_fraction, "share of the file that is val").in(up_to_below(0, 1));
    add("context", &O::context, "characters per sample").in(at_least(1));
    add("stride", &O::stride, "characters between the starts of two samples; 0: context")
        .in(at_least(0))
        .expects("0 (as context) or more");
  });
}

namespace {

constexpr uint64_t kMaxText = uint64_t{4} << 30;

int byte_at(std::string_view text, std::size_t place) { return static_cast<uint8_t>(text[place]); }

// In their order.
std::string distinct_bytes(const std::string& text) {
  std::array<bool, 256> seen{};
  for (const char c : text) seen[static_cast<uint8_t>(c)] = true;
  std::string distinct;
  for (size_t byte = 0; byte < seen.size(); ++byte) {
    if (seen[byte]) distinct.push_back(static_cast<char>(byte));
  }
  return distinct;
}

std::optional<std::string> vocabulary_in(const std::string& encoding) {
  return encoding_json::read_encoding(encoding, "Text", [](const encoding_json::Json& json) {
    return distinct_bytes(encoding_json::text_of(json.at("characters")));
  });
}

}  // namespace

TextDataset::TextDataset(TextDatasetOptions options, const DatasetUse& use) : options_(std::move(options)) {
  check_options(options_);
  if (options_.stride == 0) options_.stride = options_.context;
  const auto* training = use.training == nullptr ? nullptr : dynamic_cast<const TextDataset*>(&use.training->source());
  const std::optional<std::string> kept = vocabulary_in(use.encoding);
  is_kept_ = kept.has_value();
  const std::string text = kept && !use.reads ? "" : read_plain_text("TextDataset", options_.path, kMaxText);
  number(kept ? *kept : training != nullptr ? training->vocabulary_ : distinct_bytes(text));
  if (kept && !use.reads) return;
  const std::size_t odd = text.find_first_not_of(vocabulary_);
  if (odd != std::string::npos) {
    throw ConfigError(c10::str("[TextDataset] file '", options_.path, "': found byte ", byte_at(text, odd),
                               " at position ", odd, ", expected the ", vocab_size(), " characters of the training ",
                               "data, which are all that the model knows; leave it out, or take a split of that file"));
  }
  read_split(text);
}

void TextDataset::number(std::string vocabulary) {
  vocabulary_ = std::move(vocabulary);
  token_of_.fill(-1);
  for (size_t token = 0; token < vocabulary_.size(); ++token) {
    token_of_[static_cast<uint8_t>(vocabulary_[token])] = static_cast<int16_t>(token);
  }
}

void TextDataset::read_split(const std::string& text) {
  const auto val_size = static_cast<size_t>(std::floor(static_cast<double>(text.size()) * options_.val_fraction));
  const size_t border = text.size() - val_size;
  const size_t first = options_.split == "val" ? border : 0;
  const size_t last = options_.split == "train" ? border : text.size();
  tokens_.reserve(last - first);
  for (size_t i = first; i < last; ++i) {
    tokens_.push_back(static_cast<uint8_t>(token_of_[static_cast<uint8_t>(text[i])]));
  }
  const auto length = static_cast<int64_t>(tokens_.size());
  if (length <= options_.context) {
    throw DataError(c10::str("[TextDataset] file '", options_.path, "': found ", length, " characters in split '",
                             options_.split, "', expected more than context ", options_.context,
                             "; lower 'context' or take a longer text"));
  }
  size_ = (length - 1 - options_.context) / options_.stride + 1;
}

Batch TextDataset::get(const std::vector<int64_t>& indices) const {
  check_indices("TextDataset", indices, size_);
  const auto count = static_cast<int64_t>(indices.size());
  const at::Tensor input = at::empty({count, options_.context}, at::TensorOptions(at::kLong));
  const at::Tensor target = at::empty({count, options_.context}, at::TensorOptions(at::kLong));
  int64_t* inputs = input.mutable_data_ptr<int64_t>();
  int64_t* targets = target.mutable_data_ptr<int64_t>();
  for (const int64_t index : indices) {
    const auto start = tokens_.begin() + index * options_.stride;
    inputs = std::copy_n(start, options_.context, inputs);
    targets = std::copy_n(start + 1, options_.context, targets);
  }
  return {{"input", input}, {"target", target}};
}

std::string TextDataset::encoding() const {
  return encoding_json::Json{{"type", "Text"}, {"characters", encoding_json::of_text(vocabulary_)}}.dump();
}

void TextDataset::check_fits(const Dataset& training) const {
  const auto* other = dynamic_cast<const TextDataset*>(&training.source());
  if (other == nullptr || other->vocabulary_ == vocabulary_) return;
  const std::size_t more = vocabulary_.find_first_not_of(other->vocabulary_);
  const std::size_t fewer = other->vocabulary_.find_first_not_of(vocabulary_);
  const bool has_more = more != std::string::npos;
  throw ConfigError(
      c10::str("[TextDataset] file '", options_.path, "': found ", has_more ? "" : "no ", "byte ",
               has_more ? byte_at(vocabulary_, more) : byte_at(other->vocabulary_, fewer), " among its ", vocab_size(),
               " characters, expected the ", other->vocab_size(), " of the ",
               other->is_kept_ ? "text that the checkpoint was trained on; put that back, or train anew with load_from"
                               : "training data, as a text numbers its own; take a split of the same file"));
}

std::vector<int64_t> TextDataset::encode(std::string_view text) const {
  std::vector<int64_t> tokens;
  for (size_t i = 0; i < text.size(); ++i) {
    tokens.push_back(token_of_[static_cast<uint8_t>(text[i])]);
    if (tokens.back() >= 0) continue;
    throw DataError(c10::str("[TextDataset] found byte ", byte_at(text, i), " at position ", i,
                             ", expected one that occurs in '", options_.path, "'; leave it out"));
  }
  return tokens;
}

std::string TextDataset::decode(const std::vector<int64_t>& tokens) const {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size()) {
      throw DataError(c10::str("[TextDataset] found token ", tokens[i], " at position ", i, ", expected 0 to ",
                               vocab_size() - 1, "; decode tokens of this vocabulary"));
    }
    text.push_back(vocabulary_[static_cast<size_t>(tokens[i])]);
  }
  return text;
}

}  // namespace duet
