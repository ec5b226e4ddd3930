#include "core/detail/step_place.h"
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include "base/detail/op_tap.h"
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "core/detail/op_finder.h"
#include "io/plain_tensor.h"

namespace duet {

namespace {

bool holds(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Says where it came from: of the step of a trainer within this one.
class PlacedError : public StepError {
 public:
  using StepError::StepError;
};

// An error of an op, in words.
struct OpError {
  std::string message;         // one line
  bool about_index = false;    // a label or token out of range
  std::exception_ptr cause{};  // in the language that the task is written in
};

// Nothing for errors of users' own code, of memory, devices and other ranks.
std::optional<OpError> op_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::DistError&) {
  } catch (const c10::AcceleratorError&) {
  } catch (const c10::OutOfMemoryError&) {
  } catch (const c10::Error& torch_error) {
    const std::string line = first_line(torch_error);
    if (holds(line, "allocate memory") || holds(line, "CUDA error")) return std::nullopt;
    return OpError{line, dynamic_cast<const c10::IndexError*>(&torch_error) != nullptr};
  } catch (const PlacedError&) {
  } catch (const StepError& step_error) {
    const std::string line = step_error.what();
    const std::size_t name_ends = line.starts_with('[') ? line.find("] ") : std::string::npos;
    OpError known{name_ends == std::string::npos ? line : line.substr(name_ends + 2)};
    if (const auto* nested = dynamic_cast<const std::nested_exception*>(&step_error))
      known.cause = nested->nested_ptr();
    return known;
  } catch (...) {
  }
  return std::nullopt;
}

// What a forward pass moves besides gradients.
class Moved {
 public:
  explicit Moved(const Task& task) : buffers_(task.named_buffers()), random_(random_state()) {
    for (const auto& buffer : buffers_) before_.push_back(buffer.second.clone());
  }
  void put_back() const {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].second.copy_(before_[i]);
    set_random_state(random_);
  }

 private:
  NamedTensors buffers_;
  std::vector<at::Tensor> before_;
  StateDict random_;
};

// Where the code fails when it runs once more.
struct Trace {
  FailedOp op{};
  std::size_t micro_batch = 0;
  std::exception_ptr error{};
  bool ran_well = false;  // this time
};

// Other ranks would have to take part in it.
bool may_run_again(const StepPlace& place) {
  return place.code.communicator().is_alone() && !OpTap::is_active() && !OpFinder::is_watching();
}

Trace run_again(const StepPlace& place) {
  Trace trace;
  const auto failed = caught([&] {
    const Moved moved(place.task);
    {
      OpFinder finder(place.task);
      trace.error = caught([&] { place.code.retrace(place.batches, trace.micro_batch); });
      trace.op = finder.found();
      if (trace.op.op.empty()) trace.op.parameter = finder.last_parameter();
    }
    moved.put_back();
  });
  if (!failed && trace.error) return trace;
  return {.ran_well = !failed};
}

// "'head' (Linear)" of "head.weight".
std::string layer_of(const std::string& parameter, const Task& task) {
  const std::size_t dot = parameter.rfind('.');
  const std::string path = dot == std::string::npos ? std::string() : parameter.substr(0, dot);
  std::string type;
  for (const ModuleInfo& module : task.modules()) {
    if (module.path == path) type = module.type;
  }
  if (type.ends_with("Impl")) type.resize(type.size() - 4);
  if (path.empty()) return type.empty() ? "the model" : type;
  return "'" + path + "'" + (type.empty() ? "" : " (" + type + ")");
}

// " addmm failed in 'head' (Linear)".
std::string where(const Trace& trace, const Task& task) {
  if (!trace.error) return {};
  std::string text = trace.op.op.empty() ? "" : " " + trace.op.op + " failed";
  const std::string backward = trace.op.backward ? " in the backward pass" : "";
  if (trace.op.parameter.empty() || (trace.op.backward && !trace.op.reads)) return text + backward;
  const char* const relation = trace.op.backward ? " of " : trace.op.reads ? " in " : " after ";
  return text + backward + relation + layer_of(trace.op.parameter, task);
}

// "image float32 [8, 1, 28, 28], target int64 [8]".
std::string tensors_of(const Batch& batch) {
  constexpr std::size_t kMost = 12;
  std::vector<std::string> tensors;
  for (const auto& [name, tensor] : batch.items()) {
    const FileType* type = file_type(tensor.scalar_type());
    tensors.push_back(
        c10::str(name, " ", type == nullptr ? c10::toString(tensor.scalar_type()) : type->dtype, " ", tensor.sizes()));
    if (tensors.size() == kMost) break;
  }
  return join(tensors) + (batch.items().size() > kMost ? ", ..." : "");
}

std::string without_stop(std::string line) {
  while (line.ends_with('.') || line.ends_with(' ')) line.pop_back();
  return line;
}

bool is_about_index(const OpError& error) {
  return error.about_index || holds(error.message, "out of bounds") || holds(error.message, "out of range");
}

// "cast: {target: int64}" for the tensor whose dtype the message names. Labels tend to come last.
std::string cast_of(const std::string& message, const Batch& batch) {
  const bool wants_labels = holds(message, "scalar type Long");
  const at::ScalarType wanted = wants_labels ? at::kLong : at::kFloat;
  std::string name = "<tensor>";
  for (const auto& [known, tensor] : batch.items()) {
    const bool fits = tensor.scalar_type() != wanted && holds(message, c10::toString(tensor.scalar_type()));
    if (fits && (wants_labels || name == "<tensor>")) name = known;
  }
  return "cast: {" + name + ": " + file_type(wanted)->dtype + "}";
}

std::string way_out(const OpError& error, const Batch& batch, bool ran_well_again) {
  if (is_about_index(error)) {
    return "Expected labels and tokens that the model has a place for; correct the data, or the model's num_classes or "
           "vocab_size";
  }
  if (ran_well_again) {
    return "The model and its loss did not fail when they ran once more: look at hooks, metrics and the optimizer, and "
           "at what this step's code does only once";
  }
  if (holds(error.message, "dtype") || holds(error.message, "scalar type") || holds(error.message, "data type")) {
    return "Expected another dtype; cast the tensor in the data, in a config by " + cast_of(error.message, batch) +
           ", or in training_step, as to(at::kFloat) or to(at::kLong) does";
  }
  return "Expected tensors that fit the model; compare them with what it reads, correct the data or the model's sizes, "
         "or stop at the op with a debugger in mode eager";
}

// The line with which autograd refuses a second pass says how to keep the graph, which would be wrong here.
std::string what_failed(const OpError& error, const Trace& trace, const StepPlace& place) {
  if (holds(error.message, "backward through the graph a second time")) {
    return ": the graph of the loss was gone before the trainer's backward(). Expected a loss whose graph is whole; "
           "leave backward() to the trainer, and detach() what is kept from one step to the next";
  }
  const Batch batch = place.batches.empty() ? Batch() : place.batches[trace.micro_batch];
  const std::string tensors = place.batches.empty() ? "" : ". Batch: " + tensors_of(batch);
  const std::string found = where(trace, place.task);
  return (found.empty() ? "" : ":" + found) + ": " + without_stop(error.message) + tensors + ". " +
         way_out(error, batch, trace.ran_well);
}

template <class E>
[[noreturn]] void throw_with_cause(const std::string& text, const std::exception_ptr& cause) {
  if (!cause) throw E(text);
  try {
    std::rethrow_exception(cause);
  } catch (...) {
    std::throw_with_nested(E(text));
  }
}

}  // namespace

void rethrow_at(const StepPlace& place, const std::exception_ptr& error) {
  std::optional<OpError> known = op_error(error);
  if (!known || OpTap::is_active()) std::rethrow_exception(error);
  const Trace trace = may_run_again(place) ? run_again(place) : Trace();
  const bool found = !trace.op.op.empty();
  if (known->cause && !found) std::rethrow_exception(known->cause);  // perhaps no op's at all
  if (found && !known->cause) {
    if (const std::optional<OpError> again = op_error(trace.error)) known = again;  // the same text in either mode
  }
  const std::string one_of = place.batches.size() > 1 && trace.error
                                 ? c10::str(", micro-batch ", trace.micro_batch, " of ", place.batches.size())
                                 : "";
  const std::string text =
      c10::str("[Task] ", place.what, " ", place.number, one_of, what_failed(*known, trace, place));
  if (is_about_index(*known)) throw_with_cause<DataError>(text, known->cause);
  throw_with_cause<PlacedError>(text, known->cause);
}

}  // namespace duet
