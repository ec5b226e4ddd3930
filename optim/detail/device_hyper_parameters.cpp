#include "optim/detail/device_hyper_parameters.h"
#include <set>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "optim/detail/device_scalar.h"
#include "optim/optimizers/detail/fused_kernels.h"

namespace duet {

DeviceHyperParameters::DeviceHyperParameters(const std::vector<std::map<std::string, double>>& groups,
                                             at::Device device) {
  const at::NoGradGuard no_grad;
  for (const auto& group : groups) {
    auto& names = index_.emplace_back();
    for (const auto& [name, value] : group) {
      names.emplace(name, host_.size());
      host_.push_back(value);
    }
  }
  const auto count = static_cast<int64_t>(host_.size());
  const auto options = at::TensorOptions().dtype(hyper_parameter_dtype(device)).device(device);
  values_ = at::empty({count}, options);
  table_ = at::zeros({kRows, count}, options);
  base_ = at::zeros({1}, options.dtype(at::kLong));
  held_ = at::full({count}, true, options.dtype(at::kBool));
  for (int64_t i = 0; i < count; ++i) {
    scalars_.push_back(values_.select(0, i));
    write_device_scalar(scalars_.back(), host_[i]);
  }
}

std::vector<std::string> DeviceHyperParameters::names() const {
  std::set<std::string> names;
  for (const auto& group : index_) {
    for (const auto& entry : group) names.insert(entry.first);
  }
  return {names.begin(), names.end()};
}

bool DeviceHyperParameters::has(std::size_t group, const std::string& name) const {
  return group < index_.size() && index_[group].count(name) != 0;
}

std::size_t DeviceHyperParameters::position(std::size_t group, const std::string& name) const {
  if (group >= index_.size()) {
    throw ConfigError(c10::str("[Optimizer] found group ", group, ", expected one below ", index_.size()));
  }
  const auto found = index_[group].find(name);
  if (found == index_[group].end()) {
    std::string known;
    for (const auto& entry : index_[group]) known += (known.empty() ? "" : ", ") + entry.first;
    throw ConfigError(c10::str("[Optimizer] there is no hyper-parameter '", name, "'; this optimizer has ", known));
  }
  return found->second;
}

double DeviceHyperParameters::get(std::size_t group, const std::string& name) const {
  const std::size_t at = position(group, name);
  return is_scheduled(name) ? read(at) : host_[at];
}

// Waits for the device at most once between two steps, however many numbers are asked for.
double DeviceHyperParameters::read(std::size_t position) const {
  if (values_.is_cpu()) return read_device_scalar(scalars_[position]);
  if (!read_.defined()) read_ = values_.to(at::kCPU, at::kDouble);
  return read_.const_data_ptr<double>()[position];
}

const at::Tensor& DeviceHyperParameters::tensor(std::size_t group, const std::string& name) const {
  return scalars_[position(group, name)];
}

void DeviceHyperParameters::hold(std::size_t position, bool on) {
  if (held_.is_cpu()) {
    held_.mutable_data_ptr<bool>()[position] = on;
  } else {
    held_.select(0, static_cast<int64_t>(position)).fill_(on);
  }
}

void DeviceHyperParameters::set(std::size_t group, const std::string& name, double value) {
  const std::size_t at = position(group, name);
  if (is_scheduled(name)) {
    keep(group, name);
  } else if (host_[at] == value) {
    return;  // a write to the device is not free
  }
  host_[at] = value;
  write_device_scalar(scalars_[at], value);
  read_.reset();
}

void DeviceHyperParameters::keep(std::size_t group, const std::string& name) {
  hold(position(group, name), true);
  set_since_.emplace(position(group, name), name);
}

bool DeviceHyperParameters::kept(std::size_t group, const std::string& name) const {
  return set_since_.count(position(group, name)) != 0;
}

void DeviceHyperParameters::set_schedule(const std::string& name, HyperParameters::Curve curve) {
  bool known = false;
  for (std::size_t group = 0; group < index_.size(); ++group) {
    if (!has(group, name)) continue;
    known = true;
    hold(index_[group].at(name), kept(group, name));
  }
  if (!known) position(0, name);  // throws
  curves_[name] = std::move(curve);
  rows_left_ = 0;
}

void DeviceHyperParameters::clear_schedule(const std::string& name) {
  if (!is_scheduled(name)) return;
  for (std::size_t group = 0; group < index_.size(); ++group) {
    if (!has(group, name)) continue;
    const std::size_t at = index_[group].at(name);
    host_[at] = read(at);
    hold(at, true);
    set_since_.erase(at);
  }
  curves_.erase(name);
}

void DeviceHyperParameters::begin(const std::function<int64_t()>& applied, bool counted) {
  if (!has_schedules()) return;
  read_.reset();
  if (rows_left_ == 0) fill(applied(), counted);
  --rows_left_;
}

void DeviceHyperParameters::fill(int64_t applied, bool counted) {
  const at::NoGradGuard no_grad;
  const int64_t columns = values_.numel();
  const at::Tensor rows = at::zeros({kRows, columns}, at::kDouble);
  auto* const cells = rows.mutable_data_ptr<double>();
  int64_t filled = 0;
  try {
    for (; filled < kRows; ++filled) fill_row(applied + filled, cells + filled * columns);
  } catch (const ConfigError&) {
    if (filled == 0) throw;  // a value that the next step would use; later ones may never be needed
  }
  table_.copy_(rows);
  base_.fill_(counted ? applied + 1 : applied);
  rows_left_ = filled;
}

void DeviceHyperParameters::fill_row(int64_t applied, double* cells) const {
  for (const auto& [name, curve] : curves_) {
    for (std::size_t group = 0; group < index_.size(); ++group) {
      if (has(group, name)) cells[index_[group].at(name)] = curve(group, applied);
    }
  }
}

void DeviceHyperParameters::advance(const at::Tensor& applied) {
  if (!has_schedules()) return;
  read_.reset();
  if (values_.is_cpu()) {
    look_up_on_cpu(values_, held_, table_, base_, applied);
    return;
  }
  values_.copy_(at::where(held_, values_, table_.index_select(0, applied - base_).select(0, 0)));
}

void DeviceHyperParameters::end() {
  read_.reset();
  for (const auto& [position, name] : set_since_) hold(position, !is_scheduled(name));
  set_since_.clear();
}

}  // namespace duet
