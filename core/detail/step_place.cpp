#include "core/detail/step_place.h"
#include <optional>
#include <string>
#include <string_view>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include "base/detail/op_tap.h"
#include "base/detail/text.h"
#include "base/error.h"
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
  std::string op{};            // "addmm"; empty: not known
  bool replayed = false;       // whose host code has not run
  bool backward = false;       // it ran in the backward pass
  bool about_index = false;    // a label or token out of range
  std::exception_ptr cause{};  // in the language that the task is written in
};

std::string replayed_op(const c10::Error& error) {
  for (const std::string& context : error.context()) {
    if (context.starts_with(kReplayedOp)) return context.substr(context.rfind(':') + 1);
  }
  return {};
}

// The innermost frame of LibTorch's own stack trace that calls an op names it.
std::string called_op(const c10::Error& error) {
  constexpr std::string_view kCall = "at::_ops::";
  const std::string text = error.what();
  const std::size_t begin = text.find(kCall);
  if (begin == std::string::npos) return {};
  return text.substr(begin + kCall.size(), text.find("::", begin + kCall.size()) - begin - kCall.size());
}

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
    const std::string replayed = replayed_op(torch_error);
    return OpError{.message = line,
                   .op = replayed.empty() ? called_op(torch_error) : replayed,
                   .replayed = !replayed.empty(),
                   .backward = holds(torch_error.what(), "autograd::Engine"),
                   .about_index = dynamic_cast<const c10::IndexError*>(&torch_error) != nullptr};
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

std::string without_stop(std::string line) {
  while (line.ends_with('.') || line.ends_with(' ')) line.pop_back();
  return line;
}

bool is_about_index(const OpError& error) {
  return error.about_index || holds(error.message, "out of bounds") || holds(error.message, "out of range");
}

const char* way_out(const OpError& error) {
  if (is_about_index(error))
    return ". Expected labels and tokens that the model has a place for; correct the data, or the model's num_classes "
           "or vocab_size";
  if (error.backward) return ". A debugger in mode eager stops at the op";  // the forward pass has taken the data
  return ". Expected tensors that fit the model; correct the data's dtypes (cast) and shapes, or the model's sizes, or "
         "stop at the op with a debugger in mode eager";
}

// The line with which autograd refuses a second pass says how to keep the graph, which would be wrong here.
std::string what_failed(const OpError& error, const Batch* batch) {
  if (holds(error.message, "backward through the graph a second time")) {
    return "the graph of the loss was gone before the trainer's backward(). Expected a loss whose graph is whole; "
           "leave backward() to the trainer, and detach() what is kept from one step to the next";
  }
  const std::string op =
      error.op.empty() ? "" : error.op + " failed" + (error.backward ? " in the backward pass: " : ": ");
  const std::string tensors = batch == nullptr ? "" : ". Batch: " + tensors_text(batch->items());
  // LibTorch 2.15 begins some of its messages with the op.
  const bool again = !error.op.empty() && error.message.starts_with(error.op + ": ");
  const std::string message = again ? error.message.substr(error.op.size() + 2) : error.message;
  return op + without_stop(message) + tensors + way_out(error);
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
  const std::optional<OpError> known = op_error(error);
  if (!known || OpTap::is_active()) std::rethrow_exception(error);
  const std::size_t micro_batch = place.code.micro_batch();
  const Batch* const batch = micro_batch < place.batches.size() ? &place.batches[micro_batch] : nullptr;
  const std::string one_of = place.batches.size() > 1 && !known->replayed
                                 ? c10::str(", micro-batch ", micro_batch, " of ", place.batches.size())
                                 : "";
  const std::string text = c10::str("[Task] ", place.what, " ", place.number, one_of, ": ", what_failed(*known, batch));
  if (is_about_index(*known)) throw_with_cause<DataError>(text, known->cause);
  throw_with_cause<PlacedError>(text, known->cause);
}

}  // namespace duet
