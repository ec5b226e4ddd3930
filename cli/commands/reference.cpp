#include "cli/commands/reference.h"
#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <sstream>
#include <vector>
#include "base/detail/text.h"
#include "cli/catalog.h"
#include "cli/registry.h"

namespace duet {

namespace {

using Keys = std::vector<ConfigKey>;

bool has_any(const std::string& text, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts, [&](const char* part) { return text.find(part) != std::string::npos; });
}

std::vector<std::string> words_in(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream text(list);
  for (std::string word; std::getline(text, word, ',');) {
    word.erase(0, word.find_first_not_of(' '));
    if (word.empty() || word.find(' ') != std::string::npos) return {};  // a sentence, not a choice
    words.push_back(word);
  }
  return words.size() > 1 ? words : std::vector<std::string>();
}

// What names, paths and maps look like, whose type says too little.
const std::map<std::string, std::string> kUsualValues = {
    {"load_from", "runs/a"},
    {"load_from.path", "weights.safetensors"},
    {"load_from.prefix", "backbone"},
    {"load_from.revise_keys", "{'^module\\.': ''}"},
    {"load_from.which", "ema"},
    {"data.val.sampler", "default"},
    {"data.test.sampler", "default"},
    {"data.predict.sampler", "default"},
    {"default_hooks.visualization.show", "false"},
    {"show", "false"},
    {"param_scheduler", "[{type: Cosine}]"},
    {"evaluator", "[{type: Accuracy}]"},
    {"val_evaluator", "[{type: Accuracy}]"},
    {"test_evaluator", "[{type: F1, num_classes: 10}]"},
    {"custom_hooks", "[{type: EMAHook}]"},
    {"model.type", "SmallCnn"},
    {"type", "FashionMnist"},
    {"work_dir", "runs/a"},
    {"transforms", "[{type: RandomFlip}]"},
    {"custom_keys", "{norm: {decay_mult: 0.0}}"},
    {"custom_cfg", "[{data_src: loss, method_name: mean, window_size: 100}]"},
    {"sinks", "[terminal, jsonl, tensorboard]"},
    {"loss_scale", "1024.0"},
    {"limit_train_batches", "100"},
    {"limit_val_batches", "0.25"},
    {"limit_test_batches", "0.25"},
    {"limit_predict_batches", "10"},
    {"overfit_batches", "10"},
    {"max_time", "1h30m"},
    {"interval_time", "30 min"},
    {"out_dir", "/scratch/checkpoints"},
    {"device", "cpu"},
    {"priority", "NORMAL"},
    {"path", "data/file"},
    {"root", "data"},
    {"masks", "data/masks"},
    {"manifest", "data/list.csv"},
    {"images", "data/images-idx3-ubyte.gz"},
    {"labels", "data/labels-idx1-ubyte.gz"},
    {"fit_on", "data/train.csv"},
    {"features", "[width, height]"},
    {"categorical", "[zip]"},
    {"classes", "[cat, dog]"},
    {"freeze", "[backbone]"},
    {"class_weights", "[1.0, 3.0]"},
    {"class_names", "[cat, dog]"},
    {"inputs", "[image]"},
    {"keys", "[prediction]"},
    {"folder", "runs/a/files"},
    {"file", "runs/a/log.jsonl"},
    {"mean_pattern", "'.*loss.*|.*time'"},
    {"monitor", "accuracy"},
    {"save_best", "accuracy"},
    {"palette", "['#000000', '#ff0000']"},
    {"periods", "[100, 200]"},
    {"milestones", "[1000, 2000]"},
    {"restart_weights", "[1.0, 0.5]"},
    {"name", "first_try"},
    {"project", "clothes"},
    {"entity", "vision"},
    {"id", "run-1"},
    {"log_name", "loss_smooth"},
    {"data_src", "loss"},
};

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

// A number inside of the range that ConfigKey::range words.
std::string number_in(const ConfigKey& key) {
  const bool is_integer = has_any(key.type, {"integer", "bytes"});
  double high = 10;
  if (const std::size_t to = key.range.find(" to "); to != std::string::npos)
    high = std::stod(key.range.substr(to + 4));
  if (const std::size_t comma = key.range.find(", "); comma != std::string::npos)
    high = std::stod(key.range.substr(comma + 2));
  if (is_integer) return std::to_string(static_cast<int64_t>(std::min(high, 10.0)));
  return high < 1 ? std::to_string(high / 2) : "0.5";
}

std::string single_example(const ConfigKey& key) {
  const std::size_t open = key.meaning.find('{'), close = key.meaning.rfind('}');
  const auto& usual = kUsualValues;
  if (const auto found = usual.find(key.path); found != usual.end()) return found->second;
  if (has_any(key.type, {"map"})) {
    if (const auto found = usual.find(last_part(key.path)); found != usual.end()) return found->second;
    if (open != std::string::npos && close != std::string::npos) return key.meaning.substr(open, close + 1 - open);
  }
  if (key.type.rfind("true/false", 0) == 0) return key.fallback == "true" ? "false" : "true";
  for (const std::string& word : words_in(key.type)) {
    if (word != key.fallback) return word;
  }
  static const std::array kEmpty = {"", "0", "0.0", "-1", "[]"};
  if (last_part(key.path) == "batch_size") return "32";
  if (std::find(kEmpty.begin(), kEmpty.end(), key.fallback) == kEmpty.end()) return key.fallback;
  if (const auto found = usual.find(last_part(key.path)); found != usual.end()) return found->second;
  return has_any(key.type, {"integer", "number", "seconds", "bytes", "time"}) ? number_in(key) : "text";
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (std::string("|<>*_[]").find(letter) != std::string::npos) result += '\\';
    result += letter;
  }
  return result;
}

std::string code(std::string text) {
  if (text.empty()) return "";
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  return "`" + text + "`";
}

// `a.b: v` as `a: {b: v}`.
std::string as_yaml(const std::string& path, const std::string& value) {
  const std::size_t dot = path.find('.');
  if (dot == std::string::npos) return path + ": " + value;
  return path.substr(0, dot) + ": {" + as_yaml(path.substr(dot + 1), value) + "}";
}

void write_keys(std::ostream& out, const Keys& keys) {
  out << "\n| key | what it is | value | default | example |\n|---|---|---|---|---|\n";
  for (const ConfigKey& key : keys) {
    const std::string values = key.type + (key.range.empty() ? "" : ", " + key.range);
    out << "| " << code(key.path) << " | " << escaped(key.meaning) << " | " << escaped(values) << " | "
        << (key.required ? "required" : code(key.fallback)) << " | " << code(as_yaml(key.path, example_of(key)))
        << " |\n";
  }
}

void write_config(std::ostream& out) {
  out << "# Keys of a config\n\n`duet help KEY` prints the same for one key and what is below it. Durations count "
         "steps unless their sentence says otherwise.\n";
  for (const auto& [name, keys] : config_sections()) {
    out << "\n## " << (name.empty() ? "Top level" : name) << "\n";
    write_keys(out, keys);
  }
}

void write_type(std::ostream& out, const TypeKind& kind, const std::string& type) {
  out << "\n## " << type << "\n";
  const AnyOptions* options = options_of(kind.name, type);
  if (options != nullptr && !options->fields().about().empty())
    out << "\n" << escaped(options->fields().about()) << "\n";
  const Keys keys = keys_of_type(kind, type);
  std::string call = "{type: " + type;
  for (const ConfigKey& key : keys) call += key.required ? ", " + key.path + ": " + example_of(key) : "";
  if (kind.name != "constructor") out << "\nIn a config: " << code(call + "}") << "\n";
  if (!keys.empty()) write_keys(out, keys);
}

void write_kind(std::ostream& out, const TypeKind& kind) {
  out << "\n# Types: " << kind.name << "\n\nWhat `type` under " << code(kind.section) << " may be.\n";
  if (!kind.other_spellings.empty()) {
    out << "Each is also known with LR, Momentum or ParamScheduler at the end of its name.\n";
  }
  for (const std::string& type : kind.types) write_type(out, kind, type);
}

}  // namespace

std::string example_of(const ConfigKey& key) {
  const std::string value = single_example(key);
  return key.type.rfind("list", 0) == 0 && value.front() != '[' ? "[" + value + "]" : value;
}

std::string config_reference() {
  std::ostringstream out;
  write_config(out);
  for (const TypeKind& kind : type_kinds()) write_kind(out, kind);
  return out.str();
}

}  // namespace duet
