// Does not compile: the test reads what the compiler says.
#include "core/task.h"

struct Net {};

void make() {
  duet::make_task(std::make_shared<Net>(), [](const duet::Batch&) { return 1.0; });
}
