#include <duet/graph/tape_step.h>

#include <duet/graph/op_recorder.h>

namespace duet {

// Runs the hooks of a host point with the recorder paused, and marks the place.
class TapeStep::RecordingPoints : public UpdatePoints {
 public:
  RecordingPoints(UpdatePoints& inner, OpRecorder& recorder, std::vector<Moment>& moments)
      : inner_(inner), recorder_(recorder), moments_(moments) {}

  void after_backward(const UpdateContext& context) override {
    at_host_point(context, Moment::kAfterBackward, [&] { inner_.after_backward(context); });
  }
  void before_optimizer_step(const UpdateContext& context) override {
    at_host_point(context, Moment::kBeforeOptimizerStep, [&] { inner_.before_optimizer_step(context); });
  }
  void in_update(UpdateContext& context) override { inner_.in_update(context); }

 private:
  template <class Call>
  void at_host_point(const UpdateContext& context, Moment moment, Call call) {
    if (!inner_.splits()) return;
    std::vector<const void*> places;
    for (const auto& parameter : context.parameters) places.push_back(place(parameter.second.grad()));
    recorder_.mark_host_point();
    moments_.push_back(moment);
    recorder_.pause();
    call();
    recorder_.resume();
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (place(context.parameters[i].second.grad()) != places[i]) {
        recorder_.fail("a hook put another tensor in the place of the gradient of '" + context.parameters[i].first +
                       "'; change the gradient in place (copy_, mul_, ...)");
      }
    }
  }
  static const void* place(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

  UpdatePoints& inner_;
  OpRecorder& recorder_;
  std::vector<Moment>& moments_;
};

bool TapeStep::capture(UpdateRule& rule, const Window& window, UpdatePoints& points, bool strict, UpdateOutput& output) {
  inputs_.fill(window);
  OpRecorder recorder(rule.parameters(), strict);
  RecordingPoints recording(points, recorder, moments_);
  output = rule.run(inputs_.window(), recording);
  failure_ = recorder.failure();
  if (!failure_.empty()) return false;
  remember(points);
  recorder.pause();
  compile(recorder, rule, output);
  return true;
}

void TapeStep::compile(const OpRecorder& recorder, UpdateRule& rule, const UpdateOutput& output) {
  std::vector<at::Tensor> results;
  const auto keep = [&results](const at::Tensor& tensor) {
    if (tensor.defined()) results.push_back(tensor);
  };
  keep(output.loss);
  keep(output.grad_norm);
  for (const auto& item : output.log) keep(item.second);
  for (const auto& parameter : rule.parameters()) keep(parameter.second.grad());
  program_ = std::make_unique<StepProgram>(recorder.tape(), results);

  const auto replayed = [&](const at::Tensor& tensor) { return tensor.defined() ? program_->tensor(tensor) : tensor; };
  output_.loss = replayed(output.loss);
  output_.grad_norm = replayed(output.grad_norm);
  for (const auto& [name, tensor] : output.log) output_.log.emplace_back(name, replayed(tensor));
  for (const auto& parameter : rule.parameters()) gradients_.push_back(replayed(parameter.second.grad()));
}

std::string TapeStep::text(const NamedTensors& names) const {
  if (!program_) return {};
  NamedTensors all = names;
  for (const Batch& batch : inputs_.window().batches) {
    for (const auto& item : batch.items()) all.push_back(item);
  }
  all.emplace_back("loss", output_.loss);
  return program_->text(all);
}

}  // namespace duet
