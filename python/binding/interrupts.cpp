#include "python/binding/interrupts.h"
#include <csignal>
#include <utility>
#include "hooks/stop_signal_hook.h"

namespace duet::python {

namespace {

bool is_asked = false;  // under the GIL

[[noreturn]] void raise_interrupt() {
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw py::error_already_set();
}

bool is_main_thread() {
  const py::module_ threads = py::module_::import("threading");
  return threads.attr("current_thread")().is(threads.attr("main_thread")());
}

}  // namespace

InterruptsWait::InterruptsWait() {
  if (!is_main_thread() || StopSignals::are_watched()) return;
  const py::module_ signals = py::module_::import("signal");
  const py::object now = signals.attr("getsignal")(SIGINT);
  if (!now.is(signals.attr("default_int_handler"))) return;
  is_asked = false;
  const auto handler = [](int /*signal*/, const py::object& /*frame*/) {
    if (std::exchange(is_asked, true)) raise_interrupt();
  };
  signals.attr("signal")(SIGINT, py::cpp_function(handler));
  before_ = now;
}

InterruptsWait::~InterruptsWait() {
  if (!before_) return;
  bool interrupts = false;
  while (before_) {
    try {
      py::module_::import("signal").attr("signal")(SIGINT, before_);
      before_ = {};
    } catch (py::error_already_set& error) {  // of the handler of a signal that has come just now: it is called first
      error.discard_as_unraisable("duet");
      interrupts = true;
    }
  }
  is_asked = false;
  if (interrupts) PyErr_SetInterrupt();
}

void raise_interrupts() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  if (is_asked && is_main_thread() && std::exchange(is_asked, false)) raise_interrupt();
}

void expect_workers_to_stop() {
  static auto* const ours = new py::object();
  if (!is_main_thread()) return;
  const py::module_ signals = py::module_::import("signal");
  const py::object now = signals.attr("getsignal")(SIGCHLD);
  const py::object module = py::getattr(now, "__module__", py::none());
  if (now.is(*ours) || !module.equal(py::str("torch.utils.data._utils.signal_handling"))) return;
  *ours = py::cpp_function([now](int signal, const py::object& frame) {
    if (!StopSignals::are_watched() || StopSignals::received() == 0) now(signal, frame);
  });
  signals.attr("signal")(SIGCHLD, *ours);
}

}  // namespace duet::python
