#include <string>
#include <utility>
#include <vector>
#include "base/error.h"
#include "metrics/class_metric.h"
#include "metrics/probability_metric.h"
#include "metrics/regression_metric.h"
#include "python/binding/batch_tree.h"
#include "python/binding/bind.h"
#include "python/binding/context.h"
#include "python/binding/hooks.h"
#include "python/binding/options.h"

namespace duet::python {

namespace {

class PythonMetric : public Metric {
 public:
  explicit PythonMetric(py::object object) : object_(share(std::move(object))) {}

  std::vector<std::string> names() const override {
    const py::gil_scoped_acquire gil;
    return py::cast<std::vector<std::string>>(object_->attr("names")());
  }
  void reset() override {
    const py::gil_scoped_acquire gil;
    object_->attr("reset")();
  }
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override {
    const py::gil_scoped_acquire gil;
    object_->attr("add")(to_python(batch), to_dict(outputs), weight);
  }
  MetricValues compute() const override {
    const py::gil_scoped_acquire gil;
    if (!rows_.empty()) object_->attr("set_rows")(std::exchange(rows_, {}));
    return py::cast<MetricValues>(object_->attr("compute")());
  }
  std::vector<at::Tensor> sums(at::Device device) override {
    const py::gil_scoped_acquire gil;
    if (py::hasattr(*object_, "sums")) return py::cast<std::vector<at::Tensor>>(object_->attr("sums")(device.str()));
    return py::hasattr(*object_, "rows") ? std::vector<at::Tensor>() : Metric::sums(device);
  }
  std::vector<at::Tensor*> rows() override {
    const py::gil_scoped_acquire gil;
    std::vector<at::Tensor*> places;
    if (!py::hasattr(*object_, "rows")) return places;
    rows_ = py::cast<std::vector<at::Tensor>>(object_->attr("rows")());
    for (at::Tensor& rows : rows_) places.push_back(&rows);
    return places;
  }

 private:
  SharedObject object_;
  mutable std::vector<at::Tensor> rows_;  // of all ranks, until compute() gives them to the object
};

// Metrics may share a struct of options; in Python each is a class of its own.
template <class M, class Options>
struct OptionsOf : Options {};

using MadeMetric = std::unique_ptr<Metric>;

template <class M, class Options>
void bind_metric(py::module_& module, const char* name, const char* summary) {
  using Own = OptionsOf<M, Options>;
  bind_product<MadeMetric, Own>(module, name, summary, [](const Own& options) { return std::make_unique<M>(options); });
}

}  // namespace

void bind_metrics(py::module_& module) {
  bind_metric<Accuracy, AccuracyOptions>(module, "Accuracy",
                                         "Share of samples whose target is among the k largest scores.");
  bind_metric<ConfusionMatrix, ConfusionMatrixOptions>(module, "ConfusionMatrix", "Which classes are taken for which.");
  bind_metric<F1, F1Options>(module, "F1", "F1 of samples that belong to one class each.");
  bind_metric<IoUMetric, IoUMetricOptions>(module, "IoUMetric", "mmsegmentation's IoUMetric, in [0, 1].");
  bind_metric<MeanSquaredError, RegressionOptions>(module, "MeanSquaredError", "Mean of the squared errors: 'mse'.");
  bind_metric<MeanAbsoluteError, RegressionOptions>(module, "MeanAbsoluteError", "Mean of the absolute errors: 'mae'.");
  bind_metric<R2Score, RegressionOptions>(module, "R2Score", "The share of the targets' variance explained: 'r2'.");
  bind_metric<Auroc, RankingOptions>(module, "Auroc", "Area under the ROC curve: 'auroc'.");
  bind_metric<AveragePrecision, RankingOptions>(module, "AveragePrecision",
                                                "Average precision, of several classes the mean: 'map'.");
  bind_metric<CalibrationError, CalibrationErrorOptions>(module, "CalibrationError",
                                                         "Expected calibration error: 'calibration_error'.");
  bind_metric<Perplexity, PerplexityOptions>(module, "Perplexity", "exp of the mean of the output `loss`.");
  bind_plain<MadeMetric>(module, "MeanLoss", "Mean of 'loss', weighted by the batches' weights.",
                         [] { return std::make_unique<MeanLoss>(); });
}

std::unique_ptr<Metric> to_metric(const py::handle& object) {
  if (auto metric = made_of<MadeMetric>(object)) return metric;
  refuse_class(object, "Metric");
  for (const char* method : {"names", "reset", "add", "compute"}) {
    require<ConfigError>(py::hasattr(object, method), "[Metric] " + shown(object) + " has no " + method +
                                                          "(), expected names(), reset(), " +
                                                          "add(batch, outputs, weight) and compute()");
  }
  require<ConfigError>(
      !py::hasattr(object, "rows") || py::hasattr(object, "set_rows"),
      "[Metric] " + shown(object) + " has rows() but no set_rows(rows), expected it to take those of all ranks");
  return std::make_unique<PythonMetric>(py::reinterpret_borrow<py::object>(object));
}

}  // namespace duet::python
