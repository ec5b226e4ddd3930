#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "data/data_source.h"
#include "python/binding/py.h"

namespace duet::python {

// Anything that Python iterates over (a torch DataLoader, a list of batches) as a DataSource: an epoch is one
// iteration. A resume starts the epoch with the random state that it had and lets the batches that are done pass by,
// unless the loader has state_dict() and load_state_dict() of its own (torchdata's StatefulDataLoader).
class PythonSource : public DataSource {
 public:
  // Ctrl-C waits until a multiple of `window` batches of an epoch was given, those of a step.
  explicit PythonSource(py::object iterable, int64_t window = 1)
      : iterable_(share(std::move(iterable))), window_(window) {}

  void start_epoch(int64_t epoch) override;
  void iterate();  // from where an iterator stands, without an epoch
  std::optional<Batch> next() override;
  void set_should_stop(ShouldStop should_stop) override { should_stop_ = std::move(should_stop); }
  int64_t batches_per_epoch() const override;
  int64_t batches_left() const override;
  // Whether each pass over the loader moves this one: it is its own iterator, keeps its position, or is a DataLoader
  // whose workers persist.
  bool shares_iterator_with(const py::object& loader) const;
  void set_shard(int64_t rank, int64_t world_size) override { rank_ = rank, world_size_ = world_size; }
  // Its state has the generators that these hold, loaders of evaluations, as well.
  void keep_generators_of(const py::object& loaders);
  // Of a torch DistributedSampler.
  std::optional<DataShard> shard() const override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  // The random numbers that an epoch begins with.
  StateDict random_state() const;
  void set_random_state(const StateDict& state) const;
  const py::object& generators() const;
  void pass_by(int64_t samples, int64_t batches);
  void set_sampler_epoch(int64_t epoch) const;
  bool is_stateful() const;
  py::object next_object();
  void end_pass();
  void end_epoch_at_its_last_batch();
  std::optional<int64_t> dataset_size() const;
  bool is_of_this_rank(const StateDict& state) const;
  void check_size(const StateDict& state) const;
  void add_sampler(StateDict& state) const;

  SharedObject iterable_;
  SharedObject iterator_;
  ShouldStop should_stop_;
  int64_t window_;
  bool is_used_up_ = false;  // the iterable is an iterator, whose end was reached
  int64_t rank_ = 0, world_size_ = 1;
  int64_t epoch_ = 0;
  int64_t given_ = 0;         // batches of this epoch
  int64_t samples_ = 0;       // in them, those of their first tensors
  StateDict at_start_;        // random_state() when the epoch began
  bool workers_ran_ = false;  // then, those of a DataLoader that persist
  SharedObject read_ahead_;
  mutable SharedObject generators_;  // of the loader, once they are asked for
  SharedObject others_;              // generators that evaluations hold
  std::optional<StateDict> loaded_;
};

// What an evaluation reads: one loader, or a dict of them by name.
class PythonSources {
 public:
  // `training` is read meanwhile.
  explicit PythonSources(const py::object& loaders, const std::shared_ptr<PythonSource>& training = nullptr);
  NamedSources named();

 private:
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<PythonSource>> sources_;
};

}  // namespace duet::python
