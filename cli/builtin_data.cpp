#include <utility>
#include <c10/util/StringUtil.h>
#include "cli/builtin_types.h"
#include "cli/registry.h"
#include "cli/zoo/fashion_mnist.h"
#include "cli/zoo/fashion_scenes.h"
#include "data/detail/samples.h"
#include "data/file_dataset.h"
#include "data/transform.h"
#include "io/npy.h"

namespace duet {

namespace {

template <class D, Described Options>
void add_dataset(const char* name) {
  register_dataset(
      name, [](ConfigNode& node) { return std::make_shared<const D>(read_all_options<Options>(node)); },
      AnyOptions(Options()));
}

// Datasets that ask what they are read for.
template <class D, Described Options>
std::shared_ptr<const D> make_for(ConfigNode& node, const DatasetUse& use) {
  return std::make_shared<const D>(read_all_options<Options>(node), use);
}

// The config that a run saves tells the classes, in the order of their numbers.
std::shared_ptr<const Dataset> image_folder(ConfigNode& node, const DatasetUse& use) {
  const auto made = make_for<ImageFolder, ImageFolderOptions>(node, use);
  node.note_default("classes", made->classes());
  return made;
}

template <Described Options>
void add_transform(const char* name, std::unique_ptr<const Transform> (*make)(const Options&)) {
  register_transform(
      name, [make](ConfigNode& node) { return make(read_all_options<Options>(node)); }, AnyOptions(Options()));
}

struct SafetensorsOptions {
  std::string path;
  static const OptionFields& fields() {
    using O = SafetensorsOptions;
    return described<O>("Safetensors", [](const auto& add) {
      add.about("Gives each tensor of the file by its name, dtype as in the file, [N, ...].");
      add("path", &O::path, "a safetensors file whose tensors have the samples as first dimension").needed();
    });
  }
};

std::shared_ptr<const Dataset> safetensors(ConfigNode& node) {
  return std::make_shared<TensorDataset>(TensorDataset::from_file(read_all_options<SafetensorsOptions>(node).path));
}

// Files of numpy.save, each under the name of a tensor.
struct NpyOptions {
  static const OptionFields& fields() {
    return described<NpyOptions>("Npy", [](const auto& add) {
      add.about("Gives each array by its name, dtype as in its file, [N, ...].");
      add.key("arrays", "map", "a file of numpy.save for each tensor: {image: x.npy, target: y.npy}").needed();
    });
  }
};

std::shared_ptr<const Dataset> npy(ConfigNode& node) {
  const ConfigNode arrays = node.child("arrays");
  if (arrays.keys().empty()) node.fail_missing("arrays", "add arrays: {image: x.npy, target: y.npy}");
  NamedTensors tensors;
  for (const std::string& name : arrays.keys()) tensors.emplace_back(name, read_npy(arrays.need<std::string>(name)));
  return std::make_shared<TensorDataset>(tensors);
}

// Which samples of another dataset.
struct SubsetOptions {
  std::string split = "all";
  double val_fraction = 0.2;
  int64_t split_seed = 0, limit = 0;
  std::vector<int64_t> indices;
  static const OptionFields& fields() {
    using O = SubsetOptions;
    return described<O>("Subset", [](const auto& add) {
      add.about("Some samples of another dataset; gives what that gives.");
      add.key("dataset", "map with type", "whose samples").needed();
      add("split", &O::split, "all, or a part drawn by split_seed").one_of({"all", "train", "val"});
      add("val_fraction", &O::val_fraction, "share of the samples that is val").in(between(0, 1));
      add("split_seed", &O::split_seed, "which samples are val");
      add("limit", &O::limit, "only the first samples; 0: all").in(at_least(0));
      add("indices", &O::indices, "these samples, by their numbers; empty: as split and limit say").in(at_least(0));
      add.rule([](const O& o) {
        require<ConfigError>(o.indices.empty() || o.split == "all", "[Subset] found indices beside split: " + o.split +
                                                                        ", expected one of them; leave one out");
      });
    });
  }
};

std::shared_ptr<const Dataset> subset(ConfigNode& node, const DatasetUse& use) {
  auto dataset = make_dataset(node.child("dataset"), use);
  auto options = read_all_options<SubsetOptions>(node);
  if (!use.reads) return dataset;
  std::vector<int64_t>& taken = options.indices;
  for (const int64_t index : taken) {
    if (index < dataset->size()) continue;
    node.fail("indices", c10::str("holds ", index, ", but the dataset has ", dataset->size(),
                                  " samples, expected 0 to ", dataset->size() - 1, "; leave it out"));
  }
  node.located([&] {
    if (taken.empty()) {
      const SplitRule rule{options.split, options.val_fraction, options.split_seed};
      taken = samples_of_split(dataset->size(), rule, "[Subset]");
    }
    if (options.limit > 0 && options.limit < std::ssize(taken)) taken.resize(static_cast<std::size_t>(options.limit));
  });
  return std::make_shared<SubsetDataset>(std::move(dataset), std::move(taken));
}

struct RepeatOptions {
  int64_t times = 1;
  static const OptionFields& fields() {
    using O = RepeatOptions;
    return described<O>("Repeat", [](const auto& add) {
      add.about("All samples of another dataset several times per epoch; gives what that gives.");
      add.key("dataset", "map with type", "whose samples").needed();
      add("times", &O::times, "per epoch").in(at_least(1));
    });
  }
};

std::shared_ptr<const Dataset> repeat(ConfigNode& node, const DatasetUse& use) {
  auto dataset = make_dataset(node.child("dataset"), use);
  return std::make_shared<RepeatDataset>(std::move(dataset), read_all_options<RepeatOptions>(node).times);
}

struct ConcatOptions {
  static const OptionFields& fields() {
    return described<ConcatOptions>("Concat", [](const auto& add) {
      add.about("The samples of several datasets, one after the other; gives what these give.");
      add.key("datasets", "list of maps with type", "whose samples").needed();
    });
  }
};

// Without training data the first one's classes and scales hold for all.
std::shared_ptr<const Dataset> concat(ConfigNode& node, const DatasetUse& use) {
  std::vector<std::shared_ptr<const Dataset>> datasets;
  DatasetUse of_each = use;
  for (const ConfigNode& item : node.list("datasets")) {
    datasets.push_back(make_dataset(item, of_each));
    if (of_each.training == nullptr) of_each.training = datasets.front().get();
  }
  if (datasets.empty()) node.fail_missing("datasets", "add datasets: [{type: ...}, {type: ...}]");
  return std::make_shared<ConcatDataset>(std::move(datasets));
}

}  // namespace

void add_builtin_data() {
  add_dataset<FashionMnist, FashionMnistOptions>("FashionMnist");
  add_dataset<FashionScenes, FashionScenesOptions>("FashionScenes");
  register_dataset("Text", make_for<TextDataset, TextDatasetOptions>, AnyOptions(TextDatasetOptions()));
  register_dataset("Safetensors", safetensors, AnyOptions(SafetensorsOptions()));
  register_dataset("ImageFolder", image_folder, AnyOptions(ImageFolderOptions()));
  register_dataset("Csv", make_for<CsvDataset, CsvOptions>, AnyOptions(CsvOptions()));
  register_dataset("Npy", npy, AnyOptions(NpyOptions()));
  register_dataset("Subset", subset, AnyOptions(SubsetOptions()));
  register_dataset("Repeat", repeat, AnyOptions(RepeatOptions()));
  register_dataset("Concat", concat, AnyOptions(ConcatOptions()));
  add_transform<ChannelsFirstOptions>("ChannelsFirst", make_channels_first);
  add_transform<ResizeOptions>("Resize", make_resize);
  add_transform<CropOptions>("Crop", make_crop);
  add_transform<RandomResizedCropOptions>("RandomResizedCrop", make_random_resized_crop);
  add_transform<RandomFlipOptions>("RandomFlip", make_random_flip);
  add_transform<RandomRotationOptions>("RandomRotation", make_random_rotation);
  add_transform<ColorJitterOptions>("ColorJitter", make_color_jitter);
  add_transform<NormalizeOptions>("Normalize", make_normalize);
  add_transform<CutoutOptions>("Cutout", make_cutout);
  add_transform<MixupOptions>("Mixup", make_mixup);
  add_transform<OneHotOptions>("OneHot", make_one_hot);
}

}  // namespace duet
