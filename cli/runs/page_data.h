#pragma once

#include <vector>
#include <nlohmann/json_fwd.hpp>
#include "cli/runs/run_folder.h"

namespace duet {

// What the page of `duet report` shows of the runs; report_page/main.js reads it. However much the runs have logged, it
// stays small: curves are thinned, pictures chosen, long texts cut, and each says so.
nlohmann::ordered_json page_data(const std::vector<RunFolder>& runs);

}  // namespace duet
