#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>

namespace duet {

// Tensors with names, in a fixed order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// How a batch was nested where it came from (Python's dicts, tuples, dataclasses), for a task that puts it together
// again.
class BatchStructure {
 public:
  virtual ~BatchStructure() = default;
  // Another one for each nesting, and for each value in it that is no tensor: a step is captured once per key.
  virtual int64_t key() const = 0;
  // The name of a tensor that is more than its values (a subclass, attributes of its own): such a step is not captured.
  virtual const std::string& special_tensor() const {
    static const std::string none;
    return none;
  }
};

// The tensors of one micro-batch, by name ("image", "target", ...). The first dimension of the first
// tensor counts the samples.
class Batch {
 public:
  Batch() = default;
  Batch(std::initializer_list<std::pair<std::string, at::Tensor>> items);

  // The tensor called `name`; throws DataError that lists the names there are.
  const at::Tensor& operator[](std::string_view name) const&;
  at::Tensor operator[](std::string_view name) && { return std::as_const(*this)[name]; }
  bool has(std::string_view name) const;
  // Adds a tensor, or replaces the one of the same name.
  void set(std::string name, at::Tensor tensor);

  // The samples' numbers in their dataset, one per row; empty if the source does not say.
  const std::vector<int64_t>& sample_ids() const { return sample_ids_; }
  void set_sample_ids(std::vector<int64_t> ids) { sample_ids_ = std::move(ids); }

  // Null: nothing but these names.
  const std::shared_ptr<const BatchStructure>& structure() const { return structure_; }
  void set_structure(std::shared_ptr<const BatchStructure> structure) { structure_ = std::move(structure); }

  // Number of samples: rows of the first tensor; 0 for an empty batch, 1 for a 0-dim tensor.
  int64_t size() const;
  const NamedTensors& items() const& { return items_; }
  NamedTensors items() && { return std::move(items_); }

  // The same batch with map(tensor) in the place of each tensor.
  template <class Map>
  Batch mapped(Map map) const {
    Batch made(*this);
    for (auto& item : made.items_) item.second = map(item.second);
    return made;
  }
  // The same batch on `device`; tensors that are there already are shared, not copied.
  Batch to(at::Device device, bool non_blocking = false) const;

 private:
  NamedTensors items_;
  std::vector<int64_t> sample_ids_;
  std::shared_ptr<const BatchStructure> structure_;
};

}  // namespace duet
