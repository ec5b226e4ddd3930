#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <nlohmann/json_fwd.hpp>
#include "cli/runs/run_folder.h"

namespace duet {

// The whole page of `duet report`: HTML with style, scripts, data and pictures inside.
std::string report_page(const std::vector<RunFolder>& runs);

// What it shows of the runs; report_page/main.js reads it. However much the runs have logged, it stays small: curves
// are thinned, pictures chosen, long texts cut, and each says so.
nlohmann::ordered_json page_data(const std::vector<RunFolder>& runs);

// The files of cli/report_page by name, in the order that they are put into the page; made at build time.
std::vector<std::pair<std::string_view, std::string_view>> report_page_files();

}  // namespace duet
