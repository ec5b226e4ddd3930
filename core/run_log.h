#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>

namespace duet {

struct StepResult;

// Where a run leaves what shall be logged, and where LoggerHook finds it. A number takes one of three ways into a line:
//
//   of a step         run.log(name, value). The trainer puts the step's results before them: the loss, what the task
//                     returned in StepOutput::log, grad_norm. LoggerHook takes all of them over at after_train_iter,
//                     as tensors on the device, and reads them when a line of kind "train" is due.
//   at any time       run.log.gauge(name, f): asked when such a line is written.
//   of an evaluation  what the metrics gave, TrainContext::evaluation.metrics: a line of kind "val" or "test".
//
// So nothing is read between lines, and without somebody who logs everything is dropped. Texts and pictures go to
// everybody who listens, at once.
class RunLog {
 public:
  using Gauge = std::function<double()>;
  using ImageListener = std::function<void(const std::string& name, const at::Tensor& pixels)>;
  using TextListener = std::function<void(const std::string& name, const std::string& text)>;

  // A number that can be asked at any time, under a name that is logged: "lr", "memory". Replaces one of that name.
  void gauge(const std::string& name, Gauge gauge) { gauges_[name] = std::move(gauge); }
  void remove_gauge(const std::string& name) { gauges_.erase(name); }
  const std::map<std::string, Gauge>& gauges() const { return gauges_; }

  // A value of this step: 0-dim, on any device. The last one of a name counts; the next step starts with none.
  void operator()(const std::string& name, at::Tensor value);
  void operator()(const std::string& name, double value);
  const std::vector<std::pair<std::string, at::Tensor>>& values() const { return values_; }
  // By the trainer: a step begins, a step has run.
  void start_step() { values_.clear(); }
  void put_results(const StepResult& result);

  // uint8 [height, width, 3] RGB on the CPU, or a text; go to everybody who listens, at once.
  void image(const std::string& name, const at::Tensor& pixels) const;
  void text(const std::string& name, const std::string& text) const;
  bool wants_images() const;

  // Keeps somebody listening for as long as it, or a copy of it, lives; may outlive the log.
  using Listening = std::shared_ptr<const void>;
  // Without a function for pictures none are made for this listener.
  [[nodiscard]] Listening listen(ImageListener image, TextListener text);

 private:
  struct Listener;

  std::map<std::string, Gauge> gauges_;
  std::vector<std::pair<std::string, at::Tensor>> values_;
  std::vector<std::weak_ptr<const Listener>> listeners_;
};

}  // namespace duet
