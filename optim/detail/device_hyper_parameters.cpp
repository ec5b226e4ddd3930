#include "optim/detail/device_hyper_parameters.h"
#include <set>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>
#include "base/detail/text.h"
#include "base/error.h"

namespace duet {

at::Tensor make_device_scalar(double value, at::ScalarType dtype, at::Device device) {
  return at::full({}, value, at::TensorOptions().dtype(dtype).device(device));
}

void write_device_scalar(const at::Tensor& scalar, double value) {
  if (!scalar.is_cpu()) {
    scalar.fill_(value);
  } else if (scalar.scalar_type() == at::kDouble) {
    *scalar.mutable_data_ptr<double>() = value;
  } else if (scalar.scalar_type() == at::kLong) {
    *scalar.mutable_data_ptr<int64_t>() = static_cast<int64_t>(value);
  } else {
    *scalar.mutable_data_ptr<float>() = static_cast<float>(value);
  }
}

double read_device_scalar(const at::Tensor& scalar) {
  if (!scalar.is_cpu()) return scalar.item<double>();
  if (scalar.scalar_type() == at::kDouble) return *scalar.const_data_ptr<double>();
  if (scalar.scalar_type() == at::kLong) return static_cast<double>(*scalar.const_data_ptr<int64_t>());
  return *scalar.const_data_ptr<float>();
}

at::ScalarType hyper_parameter_dtype(at::Device device) { return device.is_cpu() ? at::kDouble : at::kFloat; }

namespace {

// Where not `held`, values[i] = table[applied - base][i]; float64. One operator in place of four: in eager mode it
// costs what one of them does.
void look_up_cpu(at::Tensor& values, const at::Tensor& held, const at::Tensor& table, const at::Tensor& base,
                 const at::Tensor& applied) {
  const int64_t row = *applied.const_data_ptr<int64_t>() - *base.const_data_ptr<int64_t>();
  TORCH_CHECK_INDEX(row >= 0 && row < table.size(0), "row ", row, " of a table of ", table.size(0));
  const int64_t count = values.numel();
  const double* const from = table.const_data_ptr<double>() + row * count;
  const bool* const keep = held.const_data_ptr<bool>();
  auto* const to = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < count; ++i) {
    if (!keep[i]) to[i] = from[i];
  }
}

}  // namespace

// Registered when the program starts.
TORCH_LIBRARY_FRAGMENT(duet, library) {
  library.def("look_up_(Tensor(a!) values, Tensor held, Tensor table, Tensor base, Tensor applied) -> ()");
}

TORCH_LIBRARY_IMPL(duet, CPU, library) { library.impl("look_up_", look_up_cpu); }

// It changes a tensor in place and has no derivative.
TORCH_LIBRARY_IMPL(duet, Autograd, library) { library.impl("look_up_", torch::CppFunction::makeFallthrough()); }

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
  at_begin_ = host_;
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
    throw ConfigError(c10::str("[Optimizer] there is no hyper-parameter '", name, "'; this optimizer has ",
                               join(keys_in(index_[group]))));
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
  at_begin_ = host_;
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
    static const auto look_up =
        c10::Dispatcher::singleton().findSchemaOrThrow("duet::look_up_", "").typed<decltype(look_up_cpu)>();
    look_up.call(values_, held_, table_, base_, applied);
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
