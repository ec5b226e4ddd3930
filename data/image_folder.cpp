#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "data/detail/csv_values.h"
#include "data/detail/pictures.h"
#include "data/detail/samples.h"
#include "data/file_dataset.h"
#include "io/csv.h"
#include "io/image.h"

namespace duet {

namespace {

namespace fs = std::filesystem;

void require_folder(const std::string& folder, const char* option) {
  std::error_code ignored;
  require<DataError>(fs::is_directory(folder, ignored), std::string("[ImageFolder] ") + option + " is '" + folder +
                                                            "', expected a folder that exists; correct the path");
}

// Numbers of `limit` samples, ascending: every class gives one before one gives a second.
std::vector<int64_t> spread_over_classes(const std::vector<int64_t>& labels, int64_t limit) {
  std::map<int64_t, int64_t> given;
  std::vector<std::pair<int64_t, int64_t>> turns;  // in which a sample comes, and its number
  for (const int64_t label : labels) turns.emplace_back(given[label]++, std::ssize(turns));
  std::sort(turns.begin(), turns.end());
  std::vector<int64_t> numbers;
  for (const auto& [turn, number] : turns) {
    if (limit == 0 || std::ssize(numbers) < limit) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

bool has_all_targets(const CsvTable& manifest) {
  const auto target = manifest.places.find("target");
  const auto is_empty = [&](const auto& row) { return row[target->second].empty(); };
  return target != manifest.places.end() && std::ranges::none_of(manifest.rows, is_empty);
}

// Whether the targets of a manifest are pictures, all or none.
bool names_masks(const CsvTable& table, std::size_t target) {
  const bool masks = !table.rows.empty() && is_image_name(table.rows.front()[target]);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const std::string& name = table.rows[i][target];
    const std::string where = c10::str("[ImageFolder] ", table.path, ":", table.lines[i]);
    require<DataError>(!name.empty(), where + ": found no target, expected a class or a mask's path; fill it in");
    require<DataError>(is_image_name(name) == masks, where + ": found the target '" + one_line(name) + "', expected " +
                                                         (masks ? "a mask's path" : "a class") +
                                                         " as in the lines before; correct it");
  }
  return masks;
}

std::vector<std::string> known_classes(const ImageFolderOptions& options, const DatasetUse& use) {
  if (!options.classes.empty()) return options.classes;
  return !use.classes.empty() || use.training == nullptr ? use.classes : use.training->class_names();
}

// "train2017", "Validation", "masks": what parts of a dataset are called.
bool names_part(const std::string& folder) {
  static const std::set<std::string> kParts = {
      "train",  "training", "val",   "valid", "validation", "test",  "testing", "dev",  "eval",       "fold",
      "images", "image",    "masks", "mask",  "labels",     "label", "split",   "part", "annotations"};
  std::string letters;
  for (const char c : folder) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) letters += static_cast<char>(std::tolower(c));
  }
  return kParts.contains(letters);
}

// A root above those of train and val, or above the one folder that holds the classes, would teach these as classes.
void check_are_classes(const std::string& root, const std::vector<std::string>& folders) {
  const auto parts = std::ranges::count_if(folders, names_part);
  const auto within = entries_of(root + "/" + folders.front());
  const auto is_picture = [](const auto& entry) { return !is_folder(entry) && is_image_name(entry.path().string()); };
  const bool one_holds_all =
      folders.size() == 1 && std::ranges::any_of(within, is_folder) && std::ranges::none_of(within, is_picture);
  if (parts < 2 && parts < std::ssize(folders) && !one_holds_all) return;
  throw DataError(
      "[ImageFolder] '" + root + "' holds the folders " + join(folders) +
      ", which look like parts of the data, expected one for each class; set root to the folder whose " +
      "folders are the classes, for train and val each (with masks: set root and masks), or list the names " +
      "above in classes if they are the classes");
}

std::string path_from(const std::string& root, const std::string& path) {
  return fs::path(path).is_absolute() ? path : root + "/" + path;
}

std::string without_ending(const std::string& path) { return fs::path(path).replace_extension().string(); }

}  // namespace

const OptionFields& ImageFolderOptions::fields() {
  using O = ImageFolderOptions;
  return described<O>("ImageFolder", [](const auto& add) {
    add.about(
        "Pictures of a folder: gives image float32 [N, channels, H, W] in [0, 1], target int64 [N] (classes), with "
        "masks int64 [N, H, W], with task: regression float32 [N].");
    add("root", &O::root, "a folder for each class; with masks or a manifest the pictures themselves").needed();
    add("masks", &O::masks, "folder of PNG masks called like the pictures");
    add("manifest", &O::manifest, "CSV with the columns image and target (a class, a mask's path, or a number)");
    add("classes", &O::classes, "in the order of their numbers; empty: the folders' names, sorted");
    add("mask_values", &O::mask_values,
        "values of class 0, 1, ... in masks; empty: each is its class; else 255 is ignored")
        .in({.low = 0, .high = 65535});
    add("task", &O::task, "what the targets of a manifest are: classes, or numbers to predict")
        .one_of({"classification", "regression"});
    add("channels", &O::channels, "3: RGB, 1: grey").in(between(1, 3));
    add("split", &O::split, "all, or a part drawn by split_seed").one_of({"all", "train", "val"});
    add("val_fraction", &O::val_fraction, "share of the samples that is val").in(between(0, 1));
    add("split_seed", &O::split_seed, "which samples are val");
    add("limit", &O::limit, "only so many samples, of all classes alike; 0: all").in(at_least(0));
    add.rule([](const O& o) {
      require<ConfigError>(o.channels != 2, "[ImageFolder] channels is 2, expected 3 (RGB) or 1 (grey)");
      require<ConfigError>(o.masks.empty() || o.manifest.empty(),
                           "[ImageFolder] found masks beside a manifest, expected one of them; name the masks in the "
                           "manifest's column target");
      require<ConfigError>(o.task == "classification" || (!o.manifest.empty() && o.classes.empty()),
                           "[ImageFolder] task is regression, expected a manifest whose column target holds numbers, "
                           "and no classes; set manifest and leave classes out");
      const std::set<int64_t> values(o.mask_values.begin(), o.mask_values.end());
      require<ConfigError>(values.size() == o.mask_values.size(),
                           "[ImageFolder] mask_values hold a value twice, expected one for each class; correct them");
    });
  });
}

ImageFolder::ImageFolder(ImageFolderOptions options, const DatasetUse& use)
    : options_(std::move(options)), classes_(known_classes(options_, use)) {
  check_options(options_);
  mask_labels_ = std::make_shared<MaskLabels>(options_.mask_values);
  require_folder(options_.root, "root");
  list_samples(use.predicts);
  if (options_.mask_values.empty()) check_masks();
  choose_samples();
}

void ImageFolder::list_samples(bool predicts) {
  if (!options_.manifest.empty()) return list_manifest(predicts);
  const bool has_folders = options_.masks.empty() && (!predicts || has_class_folders());
  has_folders ? list_class_folders() : list_pictures();
  require<DataError>(!samples_.empty(),
                     "[ImageFolder] '" + options_.root + "': found no .png, .jpg or .jpeg below it; correct the path");
}

void ImageFolder::check_masks() const {
  std::vector<std::string> masks;
  for (const Sample& sample : samples_) {
    if (!sample.mask.empty()) masks.push_back(sample.mask);
  }
  check_not_black_and_white(masks);
}

// Of this split, and no more than the limit.
void ImageFolder::choose_samples() {
  std::vector<Sample> split, chosen;
  std::vector<int64_t> labels;
  for (const int64_t index : samples_of_split(size(), {options_.split, options_.val_fraction, options_.split_seed},
                                              "[ImageFolder] '" + options_.root + "'")) {
    split.push_back(std::move(samples_[static_cast<std::size_t>(index)]));
    labels.push_back(split.back().label);
  }
  for (const int64_t number : spread_over_classes(labels, options_.limit)) {
    chosen.push_back(std::move(split[static_cast<std::size_t>(number)]));
  }
  samples_ = std::move(chosen);
}

// Whether folders of known classes are all that there is, so that pictures to predict have a target.
bool ImageFolder::has_class_folders() const {
  bool found = false;
  for (const auto& entry : entries_of(options_.root)) {
    const std::string name = entry.path().filename().string();
    if (is_folder(entry)) {
      if (std::find(classes_.begin(), classes_.end(), name) == classes_.end()) return false;
      found = true;
    } else if (is_image_name(name)) {
      return false;
    }
  }
  return found;
}

void ImageFolder::list_class_folders() {
  PictureList list;
  const std::vector<std::string> folders = list.folders_in(options_.root);
  require<DataError>(!folders.empty(), "[ImageFolder] '" + options_.root +
                                           "' has no folders, expected one for each class with its pictures in it; "
                                           "sort the pictures into folders, or set masks or manifest");
  if (classes_.empty()) {
    check_are_classes(options_.root, folders);
    classes_ = folders;
  }
  for (const std::string& folder : folders) {
    const int64_t label = label_of(folder, "a folder in '" + options_.root + "'");
    const std::string path = options_.root + "/" + folder;
    for (const std::string& name : list.below(path)) samples_.push_back({path + "/" + name, "", label});
  }
  list.warn();
}

// All pictures below root, each with its mask if there are such.
void ImageFolder::list_pictures() {
  has_targets_ = !options_.masks.empty();
  if (has_targets_) require_folder(options_.masks, "masks");
  std::map<std::string, std::string> masks;
  PictureList list;
  const std::vector<std::string> found = has_targets_ ? list.below(options_.masks) : std::vector<std::string>();
  for (const std::string& name : found) masks[without_ending(name)] = options_.masks + "/" + name;
  for (const std::string& name : list.below(options_.root)) {
    const std::string mask = masks[without_ending(name)];
    require<DataError>(!has_targets_ || !mask.empty(),
                       "[ImageFolder] picture '" + one_line(options_.root + "/" + name) + "' has no mask, expected '" +
                           options_.masks + "/" + one_line(without_ending(name)) +
                           ".png'; add it, or move the picture away");
    samples_.push_back({options_.root + "/" + name, mask, 0});
  }
  list.warn();
}

void ImageFolder::list_manifest(bool predicts) {
  const CsvTable table = read_csv(options_.manifest);
  has_targets_ = !predicts || has_all_targets(table);
  const std::size_t image = table.column("image");
  const std::size_t target = has_targets_ ? table.column("target") : image;
  const bool numbers = has_targets_ && has_numbers(), masks = has_targets_ && !numbers && names_masks(table, target);
  if (classes_.empty() && has_targets_ && !numbers && !masks) {
    ClassNames names;
    for (const auto& row : table.rows) names.insert(row[target]);
    classes_.assign(names.begin(), names.end());
  }
  std::map<std::string, std::size_t> lines;  // of pictures
  bool is_told = options_.split != "train";
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const std::string where = c10::str(options_.manifest, ":", table.lines[i]);
    Sample sample{path_from(options_.root, table.rows[i][image]), "", 0};
    const std::string picture = is_told ? "" : fs::path(sample.image).lexically_normal().string();
    const auto [first, is_new] = lines.emplace(picture, table.lines[i]);
    if (!is_told && !is_new) {
      is_told = true;
      log_warning(c10::str("[ImageFolder] ", where, ": names '", one_line(sample.image), "' as line ", first->second,
                           " does, expected each picture once, as it may be trained on and validated on; leave such "
                           "lines out, or give train and val lists of their own"));
    }
    if (numbers) {
      const auto row = static_cast<int64_t>(i);
      sample.number = float_in(number_in(table, row, target), table, row, target);
    } else if (masks) {
      sample.mask = path_from(options_.root, table.rows[i][target]);
    } else if (has_targets_) {
      sample.label = label_of(table.rows[i][target], where);
    }
    for (const std::string& file : {sample.image, sample.mask}) {
      std::error_code ignored;
      require<DataError>(file.empty() || fs::is_regular_file(file, ignored),
                         "[ImageFolder] " + where + ": names '" + one_line(file) +
                             "', expected a file that exists; write its path from root, or the whole of it");
    }
    samples_.push_back(std::move(sample));
  }
}

int64_t ImageFolder::label_of(const std::string& name, const std::string& where) const {
  const auto found = std::find(classes_.begin(), classes_.end(), name);
  if (found != classes_.end()) return found - classes_.begin();
  const bool told = !options_.classes.empty();
  throw DataError("[ImageFolder] found the class '" + one_line(name) + "' (" + where + "), expected one of " +
                  (told ? "classes: " : "the trained classes: ") + join(classes_) +
                  (told ? "; add it there, or move it away" : "; move it away, or train anew with it"));
}

namespace {

// float32 [3, H, W] in [0, 1]. In place: a file's limit knows of one copy (io/picture_size.h).
at::Tensor floats_of(const at::Tensor& picture) {
  const at::Tensor levels = picture.permute({2, 0, 1});
  return at::empty(levels.sizes(), at::kFloat).copy_(levels).div_(255);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> ImageFolder::read(const Sample& sample) const {
  at::Tensor pixels = floats_of(read_image(sample.image));
  if (options_.channels == 1) {
    const at::Tensor weights = at::tensor({0.299F, 0.587F, 0.114F}).view({3, 1, 1});
    pixels = (pixels * weights).sum(0, /*keepdim=*/true);
  }
  if (has_numbers()) return {pixels, at::scalar_tensor(sample.number, at::kFloat)};
  if (sample.mask.empty()) return {pixels, at::scalar_tensor(sample.label, at::kLong)};
  at::Tensor mask = mask_labels_->classes(read_mask(sample.mask), sample.mask);
  if (!classes_.empty()) check_classes(mask, sample.mask, classes_);
  if (mask.size(0) != pixels.size(1) || mask.size(1) != pixels.size(2)) {
    throw DataError(c10::str("[ImageFolder] mask '", sample.mask, "' has ", mask.size(0), " x ", mask.size(1),
                             " pixels, expected ", pixels.size(1), " x ", pixels.size(2),
                             " as its picture has; make it as large, without new values between its classes"));
  }
  return {pixels, mask};
}

Batch ImageFolder::get(const std::vector<int64_t>& indices) const {
  check_indices("ImageFolder", indices, size());
  std::vector<at::Tensor> images, targets;
  for (const int64_t index : indices) {
    auto [image, target] = read(samples_[static_cast<std::size_t>(index)]);
    if (!images.empty() && image.sizes() != images.front().sizes()) {
      throw DataError(c10::str("[ImageFolder] '", path(index), "' is ", image.sizes(), ", '", path(indices.front()),
                               "' ", images.front().sizes(), ", expected pictures of one size in a batch; add ",
                               "transforms: [{type: Resize, size: [H, W]}]"));
    }
    images.push_back(std::move(image));
    targets.push_back(std::move(target));
  }
  Batch batch{{"image", images.size() == 1 ? images.front().unsqueeze(0) : at::stack(images)}};
  if (has_targets_) batch.set("target", at::stack(targets));
  return batch;
}

std::string ImageFolder::sample_name(int64_t index) const {
  const std::string& name = path(index);
  return name.starts_with(options_.root + "/") ? name.substr(options_.root.size() + 1) : name;
}

std::vector<int64_t> ImageFolder::labels() const {
  std::vector<int64_t> labels;
  if (classes_.empty() || !has_targets_ || !samples_.front().mask.empty()) return labels;
  for (const Sample& sample : samples_) labels.push_back(sample.label);
  return labels;
}

void ImageFolder::check_fits(const Dataset& training) const {
  const auto* other = dynamic_cast<const ImageFolder*>(&training.source());
  if (other == nullptr) return;
  require<ConfigError>(!has_targets_ || other->options_.task == options_.task,
                       "[ImageFolder] '" + options_.root + "': task is " + options_.task + ", that of the training " +
                           "data " + other->options_.task + "; set task to that in both");
  if (other->classes_ == classes_) return;
  throw ConfigError("[ImageFolder] '" + options_.root + "' has the classes " + join(classes_) + ", those of the " +
                    "training data are " + join(other->classes_) + "; set classes to these in both");
}

}  // namespace duet
