#pragma once

#include <duet/core/batch.h>
#include <duet/core/train_context.h>

#include <memory>
#include <string>
#include <vector>

namespace duet {

// A figure over a whole evaluation, accumulated on the device and read once at the end.
class Metric {
 public:
  virtual ~Metric() = default;
  virtual void reset() = 0;
  // `outputs` is what Task::validation_step gave for `batch`.
  virtual void add(const Batch& batch, const NamedTensors& outputs, double weight) = 0;
  // Named results; empty if nothing was added.
  virtual MetricValues compute() const = 0;
};

// Mean of "loss", weighted by Task::weight. Reported as "loss".
class MeanLoss : public Metric {
 public:
  void reset() override;
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  MetricValues compute() const override;

 private:
  at::Tensor sum_;
  double weight_ = 0;
};

// Share of samples whose target is the largest of "prediction" [N, classes, ...]; "target" int64 [N, ...].
// Reported as "accuracy", in [0, 1].
class Accuracy : public Metric {
 public:
  explicit Accuracy(std::string target = "target", std::string prediction = "prediction");
  void reset() override;
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  MetricValues compute() const override;

 private:
  std::string target_;
  std::string prediction_;
  at::Tensor correct_;
  int64_t count_ = 0;
};

}  // namespace duet
