#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "../base/batch.h"
#include "../base/state_dict.h"

namespace duet {

// One rank's part of data that several ranks read together.
struct DataShard {
  int64_t rank = 0, world_size = 1;
  std::string order{};  // what must be alike on all ranks, a line for each thing: "batch_size: 16\n"
};

// Asked by who waits, ten times a second.
using ShouldStop = std::function<bool()>;

// Micro-batches for a trainer. state_dict() is the position after the last batch that next() gave out:
// a source that loads it goes on with the very next batch.
class DataSource : public Stateful {
 public:
  // Starts epoch `epoch` (from 0) from its beginning. A source whose state was loaded in the middle of
  // that same epoch goes on there instead, once.
  virtual void start_epoch(int64_t epoch) = 0;
  // The next micro-batch, or nothing at the end of the epoch. Its tensors may lie in the memory of the last one's.
  // Throws DataError for data it cannot read.
  virtual std::optional<Batch> next() = 0;
  // From here on a next() that waits asks `should_stop`, gives nothing once it says so, and leaves the position where
  // it was; empty: it waits as long as it takes. Trainers call it around each next(), so that a run can be interrupted.
  virtual void set_should_stop(ShouldStop /*should_stop*/) {}
  // Micro-batches of a whole epoch; 0 if unknown or endless.
  virtual int64_t batches_per_epoch() const = 0;
  // Those left of the epoch that state_dict() tells of; -1 if unknown or endless.
  virtual int64_t batches_left() const { return -1; }
  // Whether every epoch has an order of its own; nothing if the source cannot tell.
  virtual std::optional<bool> shuffles() const { return std::nullopt; }
  // A batch that next() gave, on any device, for display: pictures with the values that they had before they were
  // normalized.
  virtual Batch denormalized(const Batch& batch) const { return batch; }
  // What the sample of this number (Batch::sample_ids) is called where it comes from: the path of a file within its
  // folder. Empty: it has no name.
  virtual std::string sample_name(int64_t /*id*/) const { return ""; }
  // What the classes of its targets are called, by number. Empty: they have no names, or there are no classes.
  virtual std::vector<std::string> class_names() const { return {}; }
  // From here on gives out the part of this rank alone, where the source can tell the parts; trainers call it before
  // each run. The position stays that of all ranks.
  virtual void set_shard(int64_t /*rank*/, int64_t /*world_size*/) {}
  // Its part of data that all ranks read together: trainers then make sure that the parts fit. Nothing if it knows of
  // no other ranks.
  virtual std::optional<DataShard> shard() const { return std::nullopt; }
};

// Another source, but for what a subclass overrides. It must outlive this one.
class ForwardingSource : public DataSource {
 public:
  explicit ForwardingSource(DataSource& source) : source_(source) {}

  void start_epoch(int64_t epoch) override { source_.start_epoch(epoch); }
  std::optional<Batch> next() override { return source_.next(); }
  void set_should_stop(ShouldStop should_stop) override { source_.set_should_stop(std::move(should_stop)); }
  int64_t batches_per_epoch() const override { return source_.batches_per_epoch(); }
  int64_t batches_left() const override { return source_.batches_left(); }
  std::optional<bool> shuffles() const override { return source_.shuffles(); }
  Batch denormalized(const Batch& batch) const override { return source_.denormalized(batch); }
  std::string sample_name(int64_t id) const override { return source_.sample_name(id); }
  std::vector<std::string> class_names() const override { return source_.class_names(); }
  void set_shard(int64_t rank, int64_t world_size) override { source_.set_shard(rank, world_size); }
  std::optional<DataShard> shard() const override { return source_.shard(); }
  StateDict state_dict() const override { return source_.state_dict(); }
  void load_state_dict(const StateDict& state) override { source_.load_state_dict(state); }

 protected:
  DataSource& source_;
};

// Data of an evaluation under a name: its results are called "<name>/<metric>", or "<metric>" without a name, which a
// single source may leave empty. The source is lent for the call.
struct NamedSource {
  std::string name;  // letters, digits, _ and -
  DataSource& source;
};
using NamedSources = std::vector<NamedSource>;

}  // namespace duet
