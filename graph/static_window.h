#pragma once

#include <duet/core/batch.h>

namespace duet {

// Inputs of a captured step: tensors with fixed addresses, laid out as the window it was made from.
class StaticWindow {
 public:
  explicit StaticWindow(const Window& example);

  // Copies the values of `window` in; it has the layout of the example (same key).
  void fill(const Window& window);
  // The other way: what a step that runs only this once did to its batch.
  void copy_to(const Window& window) const;
  const Window& window() const { return window_; }
  int64_t bytes() const;

 private:
  Window window_;
};

}  // namespace duet
