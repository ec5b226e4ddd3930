#include "python/binding/source.h"
#include <algorithm>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "python/binding/batch_tree.h"
#include "python/binding/generators.h"
#include "python/binding/interrupts.h"

namespace duet::python {

namespace {

void set_cpu_random_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Torch's DataLoader, which then has one iterator.
bool keeps_workers(const py::object& loader) {
  const py::object persists = optional_attribute(loader, "persistent_workers");
  return persists && persists.is(py::bool_(true)) && py::hasattr(loader, "_iterator");
}

bool has_workers(const py::object& loader) { return keeps_workers(loader) && !loader.attr("_iterator").is_none(); }

py::object loader_state(const char* function) { return py::module_::import("duet.loader_state").attr(function); }

}  // namespace

StateDict PythonSource::random_state() const {
  StateDict state;
  state.set("random", duet::random_state().tensor("cpu").clone());
  state.set("host_random", host_random_state());
  state.set("own_random", random_state_of(generators()));
  return state;
}

// Of this epoch: on several ranks each step asks for their states.
const py::object& PythonSource::generators() const {
  if (!generators_) generators_ = share(generators_of(*iterable_));
  return *generators_;
}

void PythonSource::keep_generators_of(const py::object& loaders) { others_ = share(generators_of(loaders)); }

void PythonSource::set_random_state(const StateDict& state) const {
  set_cpu_random_state(state.tensor("random"));
  set_host_random_state(state.tensor("host_random"));
  set_random_state_of(generators(), state.tensor("own_random"));
}

// What its own generators draw goes on from where they stood, for validations may share them.
void PythonSource::start_epoch(int64_t epoch) {
  const py::gil_scoped_acquire gil;
  const bool goes_on = loaded_ && epoch_ == epoch;
  const bool is_own = loaded_ && is_of_this_rank(*loaded_);
  if (goes_on && is_own) check_size(*loaded_);
  const StateDict state = std::exchange(loaded_, std::nullopt).value_or(StateDict());
  const int64_t samples = samples_, batches = given_;
  epoch_ = epoch;
  given_ = samples_ = 0;
  read_ahead_.reset();
  generators_.reset();
  set_sampler_epoch(epoch);
  if (is_own && state.has("own_now")) set_random_state_of(generators(), state.tensor("own_now"));
  const StateDict now = random_state();
  const bool had_workers = is_own && state.has("workers_run") && state.integer("workers_run") != 0;
  if (had_workers && keeps_workers(*iterable_) && !has_workers(*iterable_)) {  // which draw a number when they start
    iterate();
    set_random_state(now);
  }
  const bool is_restored = is_own && state.has("loader");
  if (is_restored) loader_state("load")(*iterable_, state.tensor("loader"));
  if (!goes_on || at_start_.empty()) {
    at_start_ = now;
    workers_ran_ = has_workers(*iterable_);
  }
  if (goes_on && !is_restored) {
    if (keeps_workers(*iterable_) && !workers_ran_) iterable_->attr("_iterator") = py::none();
    set_random_state(at_start_);
  }
  iterate();
  if (!goes_on && !is_restored) return;
  if (goes_on && is_restored) {
    given_ = batches;
    samples_ = samples;
    if (state.has("ended") && state.integer("ended") != 0) iterator_.reset();  // the loader is at its next epoch
  } else if (goes_on) {
    pass_by(samples, batches);
    end_epoch_at_its_last_batch();
  }
  const auto is_same = [](const auto& a, const auto& b) { return same_bits(a.second, b.second); };
  const bool has_drawn = !std::ranges::equal(random_state().tensors(), now.tensors(), is_same);
  set_random_state(now);
  if (!goes_on && has_drawn) iterate();  // torchdata's loader draws for the epoch that it puts back as well
}

// Batches may have another size than when the position was saved, so that samples decide; those without count as well.
void PythonSource::pass_by(int64_t samples, int64_t batches) {
  while (samples_ < samples || given_ < batches) {
    py::object object = next_object();
    if (!object) return;
    const int64_t size = to_batch(object).size();
    if (samples_ == samples && size > 0) {
      read_ahead_ = share(std::move(object));
      --given_;
      return;
    }
    samples_ += size;
  }
  if (samples_ == samples) return;
  log_warning(c10::str("[Trainer] ", samples, " samples of epoch ", epoch_,
                       " were trained on, which no number of batches ", "has: ", samples_ - samples,
                       " more are left out"));
}

// torch's DistributedSampler and its like order each epoch by its number.
void PythonSource::set_sampler_epoch(int64_t epoch) const {
  for (const char* name : {"sampler", "batch_sampler", "dataset"}) {
    const py::object part = optional_attribute(*iterable_, name);
    if (part && py::hasattr(part, "set_epoch")) part.attr("set_epoch")(epoch);
  }
}

void PythonSource::iterate() {
  iterator_ = share(py::iter(*iterable_));
  expect_workers_to_stop();
}

bool PythonSource::is_stateful() const {
  return py::hasattr(*iterable_, "state_dict") && py::hasattr(*iterable_, "load_state_dict");
}

// A generator gives its batches once.
void PythonSource::end_pass() {
  const bool is_iterator = iterator_->is(*iterable_);
  if (is_iterator && is_used_up_ && given_ == 0) {
    throw DataError("[Trainer] found a " + type_name(*iterable_) + " that has no batches left in epoch " +
                    std::to_string(epoch_) +
                    ", expected a loader that can be iterated over once per epoch; give a list or a DataLoader, or set "
                    "max_epochs=1");
  }
  is_used_up_ = is_iterator;
}

// Null at the end.
py::object PythonSource::next_object() {
  if (read_ahead_) return ++given_, *std::exchange(read_ahead_, nullptr);
  if (!iterator_) return {};
  auto object = py::reinterpret_steal<py::object>(PyIter_Next(iterator_->ptr()));
  if (!object) {
    if (PyErr_Occurred() != nullptr) {
      const py::error_already_set error;
      raise_interrupts();  // its workers may have got them, too
      if (should_stop_ && should_stop_()) {
        log_warning(c10::str("[Trainer] the loader failed when the run was asked to stop: ", error.what()));
        return {};
      }
      iterator_.reset();
      throw error;
    }
    end_pass();
    iterator_.reset();
    return {};
  }
  ++given_;
  return object;
}

std::optional<Batch> PythonSource::next() {
  const py::gil_scoped_acquire gil;
  if (loaded_) start_epoch(epoch_);  // by a hook, in the middle of an epoch
  if (given_ % window_ == 0) raise_interrupts();
  const py::object object = next_object();
  if (!object) return std::nullopt;
  Batch batch = to_batch(object);
  samples_ += batch.size();
  end_epoch_at_its_last_batch();
  return batch;
}

// Torch's samplers draw once more when they end: at once, as a run may stop here.
void PythonSource::end_epoch_at_its_last_batch() {
  if (given_ == 0 || given_ != batches_per_epoch()) return;
  if (const py::object further = next_object()) {
    read_ahead_ = share(further);
    --given_;
  }
}

int64_t PythonSource::batches_per_epoch() const {
  const py::gil_scoped_acquire gil;
  if (!py::hasattr(*iterable_, "__len__")) return 0;
  const Py_ssize_t length = PyObject_Size(iterable_->ptr());
  if (length >= 0) return length;
  PyErr_Clear();  // a DataLoader over an IterableDataset has a __len__ that raises
  return 0;
}

int64_t PythonSource::batches_left() const {
  const int64_t whole = batches_per_epoch();
  return whole == 0 || whole < given_ ? -1 : whole - given_;
}

StateDict PythonSource::state_dict() const {
  if (loaded_) return *loaded_;
  const py::gil_scoped_acquire gil;
  StateDict state;
  state.set("epoch", epoch_);
  state.set("batches", given_);
  state.set("position", samples_);
  state.set("rank", rank_);
  state.set("world_size", world_size_);
  state.set("ended", int64_t{given_ > 0 && !iterator_ && !read_ahead_});
  state.set("workers_ran", int64_t{workers_ran_});
  state.set("workers_run", int64_t{has_workers(*iterable_)});
  add_sampler(state);
  const StateDict at_start = at_start_.empty() ? random_state() : at_start_;
  for (const auto& [name, tensor] : at_start.tensors()) state.set(name, tensor.clone());
  state.set("own_now", random_state_of(generators()));
  if (others_ && py::len(*others_) > 0) state.set("others_now", random_state_of(*others_));
  // Before the first epoch torchdata's would draw a random number.
  if (is_stateful() && !at_start_.empty()) state.set("loader", py::cast<at::Tensor>(loader_state("saved")(*iterable_)));
  return state;
}

std::optional<int64_t> PythonSource::dataset_size() const {
  const py::object data = optional_attribute(*iterable_, "dataset");
  if (!data || !py::hasattr(data, "__len__")) return std::nullopt;
  return static_cast<int64_t>(py::len(data));
}

std::optional<DataShard> PythonSource::shard() const {
  const py::gil_scoped_acquire gil;
  const py::object sampler = optional_attribute(*iterable_, "sampler");
  const py::object torchs = py::module_::import("torch.utils.data").attr("DistributedSampler");
  if (!sampler || !py::type::of(sampler).is(torchs)) return std::nullopt;
  const auto rank = py::cast<int64_t>(sampler.attr("rank")), parts = py::cast<int64_t>(sampler.attr("num_replicas"));
  if (parts != world_size_) return std::nullopt;  // each node, or rank, has data of its own
  std::string order = c10::str("samples: ", py::len(sampler.attr("dataset")), "\n");
  for (const char* name : {"seed", "shuffle", "drop_last"}) {
    order += c10::str(name, ": ", py::cast<std::string>(py::str(sampler.attr(name))), "\n");
  }
  return DataShard{rank, parts, order};
}

// What a run that goes on in C++ reads: its sampler then goes on at this position, in an order of its own.
void PythonSource::add_sampler(StateDict& state) const {
  const py::object sampler = optional_attribute(*iterable_, "sampler");
  const std::optional<int64_t> size = dataset_size();
  if (!size) return;
  const py::object random = py::module_::import("torch.utils.data").attr("RandomSampler");
  state.set("size", *size);
  state.set("shuffle", sampler && py::isinstance(sampler, random));
  state.set("seed", int64_t{0});
}

// Of another one, or among others, the position alone counts.
bool PythonSource::is_of_this_rank(const StateDict& state) const {
  return !state.has("rank") || (state.integer("rank") == rank_ && state.integer("world_size") == world_size_);
}

// In the middle of an epoch.
void PythonSource::check_size(const StateDict& state) const {
  const std::optional<int64_t> size = dataset_size();
  if (!size || !state.has("size") || state.integer("size") == *size) return;
  throw CheckpointError(c10::str("[Trainer] found a dataset of ", *size, " samples in the middle of epoch ", epoch_,
                                 ", expected the ", state.integer("size"), " that it began with; give those, or take ",
                                 "the weights alone with load_weights()"));
}

void PythonSource::load_state_dict(const StateDict& state) {
  const py::gil_scoped_acquire gil;
  for (const char* name : {"epoch", "position"}) {
    require<CheckpointError>(state.integer(name) >= 0,
                             std::string("[data] ") + name + " of the checkpoint is negative");
  }
  loaded_ = state;
  if (others_ && state.has("others_now") && is_of_this_rank(state)) {
    set_random_state_of(*others_, state.tensor("others_now"));
  }
  epoch_ = state.integer("epoch");
  // torch's DistributedSampler and its like deal the samples out in turn.
  const py::object sampler = optional_attribute(*iterable_, "sampler");
  const bool deals_out = sampler && py::hasattr(sampler, "num_replicas") && state.has("world_size");
  const int64_t shares_then = deals_out ? state.integer("world_size") : 1, shares_now = deals_out ? world_size_ : 1;
  samples_ = state.integer("position") * shares_then / shares_now;
  const bool knows_batches =
      state.has("batches") && shares_then == shares_now;  // of a run in C++ only the samples are known
  given_ = knows_batches ? state.integer("batches") : 0;
  const py::object size = optional_attribute(*iterable_, "batch_size");
  if (given_ == 0 && size && py::isinstance<py::int_>(size)) {
    const int64_t batch = std::max<int64_t>(py::cast<int64_t>(size), 1);
    given_ = (samples_ + batch - 1) / batch;
  }
  at_start_ = {};
  workers_ran_ = state.has("workers_ran") && state.integer("workers_ran") != 0;
  for (const char* name : {"random", "host_random", "own_random"}) {
    if (is_of_this_rank(state) && state.has("own_random")) at_start_.set(name, state.tensor(name).clone());
  }
}

bool PythonSource::shares_iterator_with(const py::object& loader) const {
  if (!loader.is(*iterable_)) return false;
  return py::hasattr(loader, "__next__") || is_stateful() || keeps_workers(loader);
}

PythonSources::PythonSources(const py::object& loaders, const std::shared_ptr<PythonSource>& training) {
  if (training) training->keep_generators_of(loaders);
  const auto add = [&](std::string name, py::object loader) {
    const bool is_shared = training && training->shares_iterator_with(loader);  // then the trainer keeps the position
    names_.push_back(std::move(name));
    sources_.push_back(is_shared ? training : std::make_shared<PythonSource>(std::move(loader)));
  };
  if (!py::isinstance<py::dict>(loaders)) {
    add("", loaders);
    return;
  }
  for (const auto& [name, loader] : py::cast<py::dict>(loaders)) {
    add(py::cast<std::string>(py::str(name)), py::reinterpret_borrow<py::object>(loader));
    require<ConfigError>(!names_.back().empty(), "[Trainer] found a loader called '', expected a name; give it one");
  }
}

NamedSources PythonSources::named() {
  NamedSources named;
  for (std::size_t i = 0; i < names_.size(); ++i) named.push_back({names_[i], *sources_[i]});
  return named;
}

}  // namespace duet::python
