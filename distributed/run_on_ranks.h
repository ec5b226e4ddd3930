#pragma once

#include "communicator.h"

#include <functional>

namespace duet {

// Runs `call` on every rank and waits for all. If it throws on some, it throws on all: there its own error, elsewhere
// one of the same type that names the first such rank. Without a communicator it just runs `call`.
void run_on_all_ranks(Communicator* communicator, const std::function<void()>& call);

// Runs `call` on rank 0 alone; the others wait, and learn of its error.
void run_on_main(Communicator* communicator, const std::function<void()>& call);

}  // namespace duet
