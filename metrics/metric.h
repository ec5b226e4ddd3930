#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../base/batch.h"
#include "../base/options.h"

namespace duet {

using MetricValues = std::map<std::string, double>;

// A figure over a whole evaluation, accumulated on the device and read once at the end. Shares (accuracy, IoU, F1) are
// in [0, 1], never per cent.
//
// add() reads nothing back from the device. What only the device knows (a class number that does not exist) is
// counted there and reported by compute().
class Metric {
 public:
  virtual ~Metric() = default;
  // What compute() reports, known before any data was seen. The first one is what `save_best: auto` goes by.
  virtual std::vector<std::string> names() const = 0;
  virtual void reset() = 0;
  // `outputs` is what Task::validation_step gave for `batch`. Throws DataError for what has the wrong shape or type.
  virtual void add(const Batch& batch, const NamedTensors& outputs, double weight) = 0;
  // Named results; empty if nothing was added. NaN where there is nothing to divide by. Throws DataError for values
  // that could not be counted.
  virtual MetricValues compute() const = 0;
  // What compute() starts from, as tensors whose sums over all ranks are that of the whole evaluation; who sums
  // writes into them. A metric that has seen nothing gives zeros on `device`. Throws ConfigError unless overridden.
  virtual std::vector<at::Tensor> sums(at::Device device);
  // For metrics that cannot be reduced by a sum: tensors with a row per sample, which are concatenated over ranks and
  // written back. Contiguous, on the CPU, of the same dtypes and row shapes on all ranks, with 0 rows on one that has
  // seen nothing. Such a metric's sums() is empty.
  virtual std::vector<at::Tensor*> rows() { return {}; }
  // A table to read beside the results; empty: none.
  virtual std::string text() const { return {}; }
};

// A metric that follows from one tensor of sums, on the device of what is added to it.
class SummedMetric : public Metric {
 public:
  void reset() override { sums_.reset(); }
  std::vector<at::Tensor> sums(at::Device device) override { return {begin(device)}; }

 protected:
  SummedMetric(std::vector<int64_t> shape, at::ScalarType type) : shape_(std::move(shape)), type_(type) {}

  // The sums, zeros at first.
  at::Tensor& begin(at::Device device);
  // Whether something was added.
  bool started() const { return sums_.defined(); }
  // The sums on the host, once something was added.
  at::Tensor read() const { return sums_.cpu().contiguous(); }

 private:
  std::vector<int64_t> shape_;
  at::ScalarType type_;
  at::Tensor sums_;
};

// Mean of "loss", weighted by Task::weight and summed in double on its device. Reported as "loss".
class MeanLoss : public SummedMetric {
 public:
  MeanLoss() : MeanLoss("MeanLoss", "loss") {}

  std::vector<std::string> names() const override { return {"loss"}; }
  // A loss of weight 0 is a mean over nothing and left out, NaN or not.
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  MetricValues compute() const override;

 protected:
  // `who` begins messages; `loss` is the output that is meant.
  MeanLoss(std::string who, std::string loss)
      : SummedMetric({2}, at::kDouble), who_(std::move(who)), loss_(std::move(loss)) {}

  // Nothing without weight. Reads the device.
  std::optional<double> mean() const;

 private:
  std::string who_, loss_;
};

struct PerplexityOptions {
  std::string loss = "loss";  // the output that holds a micro-batch's mean negative log-likelihood (natural logarithm)

  static const OptionFields& fields();
};

// exp of the mean loss, weighted by Task::weight: per token, if the task's weight counts tokens. Reported as
// "perplexity"; infinite where exp overflows.
class Perplexity : public MeanLoss {
 public:
  explicit Perplexity(PerplexityOptions options = {}) : MeanLoss("Perplexity", std::move(options.loss)) {}

  std::vector<std::string> names() const override { return {"perplexity"}; }
  MetricValues compute() const override;
};

// Whether less of `metric` is better. `rule` decides if it is "greater" or "less"; if it is empty the name does, by its
// last part ("val/mIoU": mIoU) and else by the whole: loss, error, perplexity and the like against accuracy, IoU, F1
// and the like. Throws ConfigError for a name that says neither or both, since a wrong guess would keep the worst
// weights, and for another rule. `who` begins the message.
bool less_is_better(const std::string& who, const std::string& metric, const std::string& rule = "");

}  // namespace duet
