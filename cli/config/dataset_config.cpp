#include "cli/config/dataset_config.h"
#include <algorithm>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/split_mix.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/registry.h"
#include "data/detail/samples.h"
#include "io/plain_tensor.h"

namespace duet {

namespace {

at::ScalarType read_dtype(const ConfigNode& node, const std::string& key) {
  std::vector<std::string> names;
  for (const FileType& type : kFileTypes) {
    names.emplace_back(type.dtype);
    if (node.need<std::string>(key) == type.dtype) return type.type;
  }
  node.fail_value(key, "a dtype; " + known_and_nearest(node.need<std::string>(key), names));
}

template <class Map>
void check_names(const Map& map, const ConfigNode& node, const Batch& batch) {
  for (const auto& [name, value] : map) {
    if (batch.has(name)) continue;
    node.fail(name, "is no tensor of this dataset; " + known_and_nearest(name, keys_in(batch.items())));
  }
}

// The samples of another dataset under other names, or with other dtypes.
class RenamedDataset : public DatasetView {
 public:
  RenamedDataset(std::shared_ptr<const Dataset> dataset, DatasetAdditions additions, ConfigNode node)
      : DatasetView(std::move(dataset)), additions_(std::move(additions)), node_(std::move(node)) {}

  Batch draw(const std::vector<int64_t>& indices, const std::vector<SampleDraw>& draws) const override {
    return additions_.renamed_and_cast(viewed().draw(indices, draws), node_);
  }
  std::vector<int64_t> labels() const override {
    const auto makes_target = [](const auto& item) { return item.second == "target"; };
    const bool renames = additions_.renamed.contains("target") || additions_.casts.contains("target") ||
                         std::any_of(additions_.renamed.begin(), additions_.renamed.end(), makes_target);
    return renames ? Dataset::labels() : viewed().labels();
  }

 private:
  DatasetAdditions additions_;
  ConfigNode node_;
};

// A cast to integers that keeps every value. Throws DataError for one that would not.
at::Tensor cast_whole(const at::Tensor& tensor, at::ScalarType dtype, const std::string& name) {
  const at::Tensor made = tensor.to(dtype);
  if (!at::isIntegralType(dtype, /*includeBool=*/true) || made.to(tensor.scalar_type()).equal(tensor)) return made;
  throw DataError(c10::str("[Dataset] found values of '", name, "' (", tensor.scalar_type(), ", e.g. ",
                           tensor.masked_select(made.to(tensor.scalar_type()).ne(tensor))[0].item<double>(), ") that ",
                           dtype, " cannot hold, expected whole numbers in its range; cast it to another ",
                           "dtype. Pictures of an ImageFolder are float32 in [0, 1] already"));
}

}  // namespace

Batch DatasetAdditions::renamed_and_cast(const Batch& batch, const ConfigNode& node) const {
  check_names(renamed, node.child("rename"), batch);
  Batch made;
  for (const auto& [name, tensor] : batch.items()) {
    const auto found = renamed.find(name);
    const std::string& new_name = found == renamed.end() ? name : found->second;
    if (made.has(new_name)) {
      node.child("rename").fail("", "gives two tensors the name '" + new_name + "'; choose another");
    }
    made.set(new_name, tensor);
  }
  check_names(casts, node.child("cast"), made);
  for (const auto& [name, dtype] : casts) made.set(name, cast_whole(made[name], dtype, name));
  made.set_sample_ids(batch.sample_ids());
  return made;
}

DatasetAdditions read_dataset_additions(const ConfigNode& node) {
  DatasetAdditions additions;
  for (const ConfigNode& item : node.list("transforms")) additions.transforms.push_back(register_transform.make(item));
  const ConfigNode renamed = node.child("rename"), casts = node.child("cast");
  for (const std::string& name : renamed.keys()) additions.renamed[name] = renamed.need<std::string>(name);
  for (const std::string& name : casts.keys()) additions.casts[name] = read_dtype(casts, name);
  return additions;
}

std::shared_ptr<const Dataset> with_additions(std::shared_ptr<const Dataset> dataset, DatasetAdditions additions,
                                              const ConfigNode& node) {
  Transforms transforms = std::move(additions.transforms);
  if (additions.changes_names()) {
    dataset = std::make_shared<RenamedDataset>(std::move(dataset), std::move(additions), node);
  }
  if (transforms.empty()) return dataset;
  return std::make_shared<TransformedDataset>(std::move(dataset), std::move(transforms));
}

namespace {

std::vector<Batch> samples_of(const Batch& batch) {
  for (const auto& [name, tensor] : batch.items()) {
    if (tensor.dim() > 0 && tensor.size(0) == batch.size()) continue;
    throw DataError(c10::str("[Config] a stream's tensor '", name, "' is ", tensor.sizes(), ", expected ", batch.size(),
                             " rows, one for each sample, since its config has transforms; leave these out"));
  }
  std::vector<Batch> samples;
  for (int64_t row = 0; row < batch.size(); ++row) {
    samples.push_back(batch.mapped([row](const at::Tensor& tensor) { return tensor.narrow(0, row, 1); }));
  }
  return samples;
}

// The batches of another stream under other names, with other dtypes, through transforms.
class ChangedSource : public ForwardingSource {
 public:
  ChangedSource(std::unique_ptr<DataSource> source, DatasetAdditions additions, ConfigNode node,
                const SourceContext& context)
      : ForwardingSource(*source),
        owned_(std::move(source)),
        additions_(std::move(additions)),
        node_(std::move(node)),
        seed_(context.rank == 0 ? context.seed
                                : mixed_bits(mixed_bits(context.seed) + static_cast<uint64_t>(context.rank))) {}

  void start_epoch(int64_t epoch) override {
    source_.start_epoch(epoch);
    if (!std::exchange(resumed_, false) || epoch != epoch_) samples_ = 0;
    epoch_ = epoch;
  }
  std::optional<Batch> next() override {
    resumed_ = false;
    const std::optional<Batch> batch = source_.next();
    if (!batch) return std::nullopt;
    Batch changed = transformed_batch(additions_.renamed_and_cast(*batch, node_));
    samples_ += batch->size();
    return changed;
  }
  Batch denormalized(const Batch& batch) const override {
    return source_.denormalized(untransformed_for_show(batch, additions_.transforms));
  }

  StateDict state_dict() const override {
    StateDict state;
    state.put("source", source_.state_dict());
    state.set("epoch", StateValue(epoch_));
    state.set("samples", StateValue(samples_));
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    const int64_t epoch = state.integer("epoch"), samples = state.integer("samples");
    source_.load_state_dict(state.part("source"));
    epoch_ = epoch;
    samples_ = samples;
    resumed_ = true;
  }

 private:
  Batch transformed_batch(Batch batch) const {
    if (additions_.transforms.empty() || batch.size() == 0) return batch;
    std::vector<int64_t> numbers = batch.sample_ids();
    for (int64_t row = 0; std::ssize(numbers) < batch.size(); ++row) numbers.push_back(samples_ + row);
    const std::vector<SampleDraw> draws(numbers.size(), {.seed = seed_, .pass = epoch_});
    Batch made = transformed(samples_of(batch), numbers, draws, additions_.transforms);
    made.set_sample_ids(batch.sample_ids());
    return made;
  }

  std::unique_ptr<DataSource> owned_;
  DatasetAdditions additions_;
  ConfigNode node_;
  uint64_t seed_;
  int64_t epoch_ = 0, samples_ = 0;  // samples given out in this epoch
  bool resumed_ = false;             // samples_ was loaded: the next start_epoch() of that epoch keeps it
};

}  // namespace

std::unique_ptr<DataSource> with_additions(std::unique_ptr<DataSource> source, DatasetAdditions additions,
                                           const ConfigNode& node, const SourceContext& context) {
  if (!additions.changes_names() && additions.transforms.empty()) return source;
  return std::make_unique<ChangedSource>(std::move(source), std::move(additions), node, context);
}

}  // namespace duet
