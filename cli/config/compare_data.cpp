#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/log.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "data/transform.h"

namespace duet {

namespace {

// The datasets that a Concat, Subset or Repeat reads.
std::vector<ConfigNode> inner_datasets(const ConfigNode& node) {
  std::vector<ConfigNode> inner = node.list("datasets");
  if (node.child("dataset").is_set()) inner.push_back(node.child("dataset"));
  return inner;
}

// Written in whatever way.
std::string canonical(const std::string& path) {
  std::error_code failed;
  const auto found = std::filesystem::weakly_canonical(std::filesystem::absolute(path, failed), failed);
  return failed ? path : found.string();
}

const OptionField* field_of(const ConfigNode& node, const std::string& key) {
  const AnyOptions* options = options_of("dataset", node.child("type").text());
  return options == nullptr ? nullptr : options->fields().find(key);
}

// As the config or else the type's default says.
std::string value_of(const ConfigNode& node, const std::string& key) {
  if (node.child(key).is_set()) return node.child(key).text();
  const OptionField* field = field_of(node, key);
  if (field == nullptr || !field->is_member()) return "";
  return text_of(field->get(options_of("dataset", node.child("type").text())->data()));
}

std::string split_of(const ConfigNode& node) {
  const std::string split = value_of(node, "split");
  return split.empty() ? "all" : split;
}

bool are_equal(const std::string& a, const std::string& b) {
  const std::optional<double> first = parse_number<double>(a), second = parse_number<double>(b);
  return a == b || (first && first == second);
}

// A Subset of all of a dataset, which draws its part as that would itself.
bool stands_for_inner(const ConfigNode& node) {
  const ConfigNode inner = node.child("dataset");
  if (!inner.is_set() || field_of(node, "indices") == nullptr) return false;
  if (!inner_datasets(inner).empty() && !stands_for_inner(inner))
    return false;  // of several, or several times the same
  const bool draws_alike = field_of(inner, "split") == nullptr || field_of(inner, "split_seed") != nullptr;
  const std::string limit = value_of(inner, "limit");
  return draws_alike && split_of(inner) == "all" && (limit.empty() || limit == "0") &&
         inner.child("indices").is_empty();
}

// What the samples of a dataset are taken from: the same text for the same files.
std::string origin_of(const ConfigNode& node) {
  if (stands_for_inner(node)) return origin_of(node.child("dataset"));
  std::string origin = node.child("type").text();
  const auto add = [&](const std::string& key, const ConfigNode& path) {
    if (path.is_set()) origin += " " + key + " " + canonical(path.text());
  };
  for (const char* key : {"path", "root", "manifest"}) add(key, node.child(key));
  for (const std::string& name : node.child("arrays").keys()) add(name, node.child("arrays").child(name));
  for (const ConfigNode& inner : inner_datasets(node)) {
    origin += " (" + origin_of(inner);
    for (const char* key : {"split", "val_fraction", "split_seed", "limit", "indices"})
      origin += " " + value_of(inner, key);
    origin += ")";
  }
  return origin;
}

enum class Parts : std::uint8_t { kOutermost, kAll };  // kAll: also those that a part is taken from

// Adds the datasets in `node`, itself included, that can be the train and the val part of something, or are all of it.
void find_parts(const ConfigNode& node, Parts wanted, std::vector<ConfigNode>& parts) {
  const bool has_parts = field_of(node, "split") != nullptr && field_of(node, "val_fraction") != nullptr;
  const bool is_file = field_of(node, "split") == nullptr && node.child("arrays").is_set();
  if (has_parts || is_file) {
    parts.push_back(node);
    if (wanted == Parts::kOutermost || stands_for_inner(node)) return;
  }
  for (const ConfigNode& inner : inner_datasets(node)) find_parts(inner, wanted, parts);
}

// Calls action(part of train, part of data) for those of the same files.
template <class Action>
void for_shared_files(const DataConfig& train, const DataConfig& data, Parts wanted, Action action) {
  std::vector<ConfigNode> trained, evaluated;
  find_parts(train.node, wanted, trained);
  find_parts(data.node, wanted, evaluated);
  for (const ConfigNode& of_train : trained) {
    for (const ConfigNode& part : evaluated) {
      if (origin_of(part) == origin_of(of_train)) action(of_train, part);
    }
  }
}

// Nothing is wrong with an evaluation on training data that is meant to be one.
void warn_of_overlap(const ConfigNode& train, const ConfigNode& part) {
  const std::string here = split_of(part), there = split_of(train);
  const bool is_chosen = !train.child("indices").is_empty() || !part.child("indices").is_empty();
  if (is_chosen || (here != there && here != "all" && there != "all")) return;
  log_warning(part.path() + " reads samples that are trained on (split: " + here + "; " + train.path() +
              ".split: " + there +
              "): its results say nothing of new ones. Set split: val there, and split: train in " + train.path() +
              (field_of(part, "split") == nullptr ? ", which a Subset has" : "") + ", unless that is meant");
}

bool is_part(const ConfigNode& node) { return split_of(node) == "train" || split_of(node) == "val"; }

void share(const ConfigNode& train, ConfigNode part) {
  if (split_of(part) == "val" && split_of(train) == "all" && train.child("indices").is_empty()) {
    part.fail("split", "is val, but " + train.path() + ".split is all of the same samples, so that these are trained " +
                           "on too, expected train; set " + train.path() + ".split: train" +
                           (field_of(train, "split") == nullptr ? ", which a Subset has" : ""));
  }
  if (!is_part(part) || !is_part(train)) return;
  for (const std::string key : {"val_fraction", "split_seed"}) {
    if (field_of(part, key) == nullptr) continue;
    if (!part.child(key).is_set() && train.child(key).is_set()) {
      part.override_with(key + "=" + train.child(key).text(), train.path());
    }
    const std::string here = value_of(part, key), there = value_of(train, key);
    if (are_equal(here, there)) continue;
    part.fail(key,
              "is " + here + ", expected " + there + " as " + train.path() + "." + key +
                  " is, since samples would be in both parts otherwise; set both to the same, or leave this one out");
  }
}

using Numbers = std::vector<double>;
using MeansAndStds = std::set<std::pair<Numbers, Numbers>>;

// One number stands for all channels.
Numbers shortened(const Numbers& numbers) {
  const bool alike = std::all_of(numbers.begin(), numbers.end(), [&](double one) { return one == numbers.front(); });
  return alike && !numbers.empty() ? Numbers{numbers.front()} : numbers;
}

MeansAndStds normalize_in(const ConfigNode& node) {
  MeansAndStds found;
  for (const ConfigNode& item : node.list("transforms")) {
    if (item.need<std::string>("type") != "Normalize") continue;
    const auto options = read_all_options<NormalizeOptions>(item);
    found.emplace(shortened(options.mean), shortened(options.std));
  }
  for (const ConfigNode& inner : inner_datasets(node)) found.merge(normalize_in(inner));
  return found;
}

}  // namespace

void share_split(const DataConfig& train, const std::vector<DataConfig>& evaluated) {
  for (const DataConfig& data : evaluated) {
    for_shared_files(train, data, Parts::kAll, share);
    for_shared_files(train, data, Parts::kOutermost, warn_of_overlap);
  }
}

void compare_normalize(const DataConfig& train, const DataConfig& evaluated) {
  const MeansAndStds known = normalize_in(train.node), given = normalize_in(evaluated.node);
  const bool are_known = std::includes(known.begin(), known.end(), given.begin(), given.end());
  if (are_known && given.empty() == known.empty()) return;
  log_warning(evaluated.node.path() + " uses a different Normalize than " + train.node.path() +
              ": the model sees other values than in training; use the same mean and std in both");
}

bool is_part_of(const DataConfig& train, const DataConfig& data) {
  bool found = false;
  for_shared_files(train, data, Parts::kAll,
                   [&](const ConfigNode&, const ConfigNode& part) { found = found || is_part(part); });
  return found;
}

}  // namespace duet
