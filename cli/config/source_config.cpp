#include <utility>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "cli/config/dataset_config.h"
#include "cli/registry.h"
#include "data/detail/samples.h"

namespace duet {

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
class ChangedSource : public DataSource {
 public:
  ChangedSource(std::unique_ptr<DataSource> source, DatasetAdditions additions, ConfigNode node,
                const SourceContext& context)
      : source_(std::move(source)),
        additions_(std::move(additions)),
        node_(std::move(node)),
        seed_(context.rank == 0 ? context.seed
                                : mixed_bits(mixed_bits(context.seed) + static_cast<uint64_t>(context.rank))) {}

  void start_epoch(int64_t epoch) override {
    source_->start_epoch(epoch);
    if (!std::exchange(resumed_, false) || epoch != epoch_) samples_ = 0;
    epoch_ = epoch;
  }
  std::optional<Batch> next() override {
    resumed_ = false;
    const std::optional<Batch> batch = source_->next();
    if (!batch) return std::nullopt;
    Batch changed = transformed_batch(additions_.renamed_and_cast(*batch, node_));
    samples_ += batch->size();
    return changed;
  }
  int64_t batches_per_epoch() const override { return source_->batches_per_epoch(); }
  void set_should_stop(ShouldStop should_stop) override { source_->set_should_stop(std::move(should_stop)); }
  int64_t batches_left() const override { return source_->batches_left(); }
  std::optional<bool> shuffles() const override { return source_->shuffles(); }
  Batch shown(const Batch& batch) const override {
    return source_->shown(untransformed_for_show(batch, additions_.transforms));
  }
  std::string sample_name(int64_t id) const override { return source_->sample_name(id); }
  std::vector<std::string> class_names() const override { return source_->class_names(); }
  void set_shard(int64_t rank, int64_t world_size) override { source_->set_shard(rank, world_size); }
  std::optional<DataShard> shard() const override { return source_->shard(); }

  StateDict state_dict() const override {
    StateDict state;
    state.put("source", source_->state_dict());
    state.set("epoch", StateValue(epoch_));
    state.set("samples", StateValue(samples_));
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    const int64_t epoch = state.integer("epoch"), samples = state.integer("samples");
    source_->load_state_dict(state.part("source"));
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

  std::unique_ptr<DataSource> source_;
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
