#pragma once

#include "data/data_source.h"
#include "distributed/communicator.h"

namespace duet {

// That what the ranks are about to read are parts of the same data, each rank its own. With other seeds, batch sizes or
// ranks some samples would come twice and others never. `what` it is: "training".
// Throws ConfigError on all ranks. Where no rank's source has a share each may hold what it likes. Private to core.
void check_same_data(const DataSource& data, Communicator& ranks, const char* what);

}  // namespace duet
