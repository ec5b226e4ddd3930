#include "data/data_loader.h"
#include <variant>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "data/detail/batch_workers.h"
#include "data/detail/samples.h"

namespace duet {

const OptionFields& DataLoaderOptions::fields() {
  using O = DataLoaderOptions;
  return described<O>("DataLoader", [](const auto& add) {
    add("batch_size", &O::batch_size, "samples of a micro-batch, of one rank").in(between(1, INT32_MAX));
    add("shuffle", &O::shuffle, "an order of its own for each epoch");
    add("seed", &O::seed, "seed of that order, and of random transforms");
    add("num_workers", &O::num_workers, "threads that read ahead; 0: read in next()").in(between(0, 256));
    add("prefetch", &O::prefetch, "batches ahead per worker").in(between(1, 1024));
    add("drop_last", &O::drop_last, "leaves out a last batch that is not full");
    add("pin_memory", &O::pin_memory, "page-locked memory, for copies to a GPU");
  });
}

namespace {

std::unique_ptr<DistributedSampler> sampler_of(const Dataset* dataset, const DataLoaderOptions& options) {
  check_options(options);
  require<ConfigError>(dataset != nullptr, "[DataLoader] found no dataset, expected one; pass a Dataset");
  return std::make_unique<DistributedSampler>(
      std::make_unique<EpochSampler>(dataset->size(), options.shuffle, options.seed), 0, 1, options.drop_last);
}

DataLoaderOptions without_order(DataLoaderOptions options) {
  options.shuffle = false;
  return options;
}

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : DataLoader(dataset, sampler_of(dataset.get(), options), without_order(options)) {
  own_sampler_ = static_cast<DistributedSampler*>(sampler_.get());
}

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, std::unique_ptr<Sampler> sampler,
                       DataLoaderOptions options)
    : dataset_(std::move(dataset)), sampler_(std::move(sampler)), options_(options) {
  check_options(options_);
  require<ConfigError>(dataset_ != nullptr, "[DataLoader] found no dataset, expected one; pass a Dataset");
  require<ConfigError>(sampler_ != nullptr, "[DataLoader] found no sampler, expected one; pass an EpochSampler");
  require<ConfigError>(!options_.shuffle,
                       "[DataLoader] found shuffle beside a sampler, expected one of them; the "
                       "sampler decides on the order: leave out shuffle, or the sampler");
  const int64_t samples = sampler_->size();
  if (options_.drop_last && samples > 0 && samples < options_.batch_size) {
    throw ConfigError(c10::str("[DataLoader] found ", samples, " samples, expected at least batch_size ",
                               options_.batch_size,
                               " with drop_last, else no batch is left; lower batch_size or unset drop_last"));
  }
  options_.pin_memory = options_.pin_memory && at::hasCUDA();
  position_ = sampler_->state_dict();
  if (options_.num_workers > 0) {
    // One more than the workers' share: the batch that next() is about to give out.
    const size_t capacity = static_cast<size_t>(options_.num_workers) * static_cast<size_t>(options_.prefetch) + 1;
    workers_ = std::make_unique<BatchWorkers>(options_.num_workers, capacity);
  }
}

DataLoader::~DataLoader() = default;

void DataLoader::start_epoch(int64_t epoch) {
  if (workers_) {
    // An endless sampler has no start to go back to: it must draw again what was read ahead.
    if (sampler_->size() == 0 && !workers_->empty()) sampler_->load_state_dict(position_);
    workers_->clear();
  }
  sampler_->start_epoch(epoch);
  position_ = sampler_->state_dict();
}

// None at the end of the epoch.
DataLoader::Drawn DataLoader::next_drawn() {
  const int64_t pass = sampler_->pass();
  Drawn drawn{sampler_->next(options_.batch_size), {}};
  if (options_.drop_last && std::ssize(drawn.indices) < options_.batch_size) return {};
  drawn.draws = draws_of(*sampler_, pass, drawn.indices.size());
  for (SampleDraw& draw : drawn.draws) draw.seed = options_.seed;
  return drawn;
}

std::function<Batch()> DataLoader::reading(Drawn drawn) const {
  return [dataset = dataset_, pin_memory = options_.pin_memory, drawn = std::move(drawn)] {
    const at::NoGradGuard no_grad;
    Batch batch = dataset->draw(drawn.indices, drawn.draws);
    if (batch.size() == std::ssize(drawn.indices)) batch.set_sample_ids(drawn.indices);  // or rows are no samples
    return pin_memory ? batch.mapped([](const at::Tensor& tensor) { return tensor.pin_memory(); }) : batch;
  };
}

std::optional<Batch> DataLoader::next() {
  if (!workers_ && should_stop_ && !dataset_->in_memory()) workers_ = std::make_unique<BatchWorkers>(1, 1);
  if (!workers_) {
    Drawn drawn = next_drawn();
    if (drawn.indices.empty()) return std::nullopt;
    StateDict position = sampler_->state_dict();
    Batch batch = reading(std::move(drawn))();
    position_ = std::move(position);
    return batch;
  }
  while (!workers_->full()) {
    Drawn drawn = next_drawn();
    if (drawn.indices.empty()) break;
    workers_->submit(reading(std::move(drawn)), sampler_->state_dict());
  }
  if (workers_->empty() || !workers_->wait(should_stop_)) return std::nullopt;
  auto [batch, position] = workers_->take();
  position_ = std::move(position);
  return std::move(batch);
}

int64_t DataLoader::batches_of(int64_t samples) const {
  const int64_t rounded_up = options_.drop_last ? 0 : options_.batch_size - 1;
  return (samples + rounded_up) / options_.batch_size;
}

int64_t DataLoader::batches_per_epoch() const { return batches_of(sampler_->size()); }

int64_t DataLoader::batches_left() const {
  const int64_t samples = sampler_->samples_left();
  const int64_t ahead = workers_ ? workers_->count() : 0;
  return samples < 0 ? samples : batches_of(samples) + ahead;
}

void DataLoader::set_shard(int64_t rank, int64_t world_size) {
  if (own_sampler_ == nullptr || own_sampler_->reads(rank, world_size)) return;
  own_sampler_->set_shard(rank, world_size);
  if (!workers_) return;
  workers_->clear();  // read ahead for another rank
  own_sampler_->load_state_dict(position_);
}

Batch DataLoader::denormalized(const Batch& batch) const { return dataset_->denormalized(batch, batch.sample_ids()); }

std::string DataLoader::sample_name(int64_t id) const { return dataset_->sample_name(id); }

std::vector<std::string> DataLoader::class_names() const { return dataset_->class_names(); }

// The position is that of the batches given out, however far a rank's workers have read ahead.
std::optional<DataShard> DataLoader::shard() const {
  std::optional<DataShard> share = sampler_->shard();
  if (!share) return share;
  share->order += c10::str("batch_size: ", options_.batch_size, "\n");
  for (const auto& [name, value] : position_.values()) {
    const OptionValue option = std::visit([](const auto& held) { return OptionValue(held); }, value);
    share->order += name + ": " + text_of(option) + "\n";
  }
  return share;
}

StateDict DataLoader::state_dict() const { return position_; }

void DataLoader::load_state_dict(const StateDict& state) {
  sampler_->load_state_dict(state);  // throws before it changes anything: what was read ahead stays then
  if (workers_) workers_->clear();
  position_ = sampler_->state_dict();
}

}  // namespace duet
