#pragma once

#include "python/binding/py.h"

namespace duet::python {

// While it lives Ctrl-C waits for the next batch, so that no step is cut in two; a second one is a KeyboardInterrupt at
// once. Not outside the main thread, and not where there is a handler of the user's own.
class InterruptsWait {
 public:
  InterruptsWait();
  ~InterruptsWait();
  InterruptsWait(const InterruptsWait&) = delete;
  InterruptsWait& operator=(const InterruptsWait&) = delete;

 private:
  py::object before_;
};

// Between two batches and after an error of the loader, under the GIL: throws what signals raise, and the
// KeyboardInterrupt that has waited.
void raise_interrupts();

// Torch raises an error, wherever the main thread is, once a worker of a DataLoader has ended: no more where the signal
// that ended it has asked a StopSignalHook of this process to stop, too. Under the GIL, after workers were started.
void expect_workers_to_stop();

}  // namespace duet::python
