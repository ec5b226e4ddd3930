#include "core/run_log.h"
#include <algorithm>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/step_observer.h"

namespace duet {

struct RunLog::Listener {
  ImageListener image;
  TextListener text;
};

void RunLog::operator()(const std::string& name, at::Tensor value) {
  if (!value.defined() || value.numel() != 1) {
    throw ConfigError(c10::str("[RunLog] found ", value.defined() ? c10::str("a tensor ", value.sizes()) : "nothing",
                               " for '", name, "', expected one number; reduce it to its mean"));
  }
  for (auto& entry : values_) {
    if (entry.first != name) continue;
    entry.second = std::move(value);
    return;
  }
  values_.emplace_back(name, std::move(value));
}

void RunLog::operator()(const std::string& name, double value) { (*this)(name, at::scalar_tensor(value, at::kDouble)); }

void RunLog::put_results(const StepResult& result) {
  const auto before = static_cast<std::ptrdiff_t>(values_.size());
  const auto put = [this](const std::string& name, const at::Tensor& value) {
    if (value.defined()) values_.emplace_back(name, value);
  };
  put("loss", result.loss);
  for (const auto& [name, value] : result.log) put(name, value);
  put("grad_norm", result.grad_norm);
  std::rotate(values_.begin(), values_.begin() + before, values_.end());
}

void RunLog::image(const std::string& name, const at::Tensor& pixels) const {
  for (const auto& one : listeners_) {
    const auto listener = one.lock();
    if (listener && listener->image) listener->image(name, pixels);
  }
}

void RunLog::text(const std::string& name, const std::string& text) const {
  for (const auto& one : listeners_) {
    const auto listener = one.lock();
    if (listener && listener->text) listener->text(name, text);
  }
}

bool RunLog::wants_images() const {
  return std::any_of(listeners_.begin(), listeners_.end(), [](const auto& one) {
    const auto listener = one.lock();
    return listener && listener->image;
  });
}

RunLog::Listening RunLog::listen(ImageListener image, TextListener text) {
  std::erase_if(listeners_, [](const auto& one) { return one.expired(); });
  auto listener = std::make_shared<const Listener>(Listener{std::move(image), std::move(text)});
  listeners_.push_back(listener);
  return listener;
}

}  // namespace duet
