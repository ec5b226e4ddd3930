#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "cli/runs/run_folder.h"

namespace duet {

// The whole page of `duet report`: HTML with style, scripts, data and pictures inside.
std::string report_page(const std::vector<RunFolder>& runs);

// The files of cli/report_page by name, in the order that they are put into the page; made at build time.
std::vector<std::pair<std::string_view, std::string_view>> report_page_files();

// A picture of a prediction that a run has written: vis_data/<pass>_<sample>_<step>.png.
struct RunPicture {
  std::string pass;    // val, test, predict
  std::string sample;  // its number within the pass, or its name
  int64_t step = 0;
  int64_t shrink = 1;    // pixels of the file, to each side, for one of `png`
  std::string legend{};  // what is where in it, as its painter says
  std::string png{};     // the bytes of a PNG file
};

struct RunPictures {
  std::vector<RunPicture> shown;  // by pass and sample (numbers before names), then by step
  std::size_t found = 0;
  std::size_t unreadable = 0;  // of those that were tried
};

// Of the samples spread over those of each pass the newest pictures, then earlier ones of the same samples, as many as
// `bytes` have room for. All of the newest get the same room, and a picture that is larger is scaled down. Those
// written before `began` (seconds since 1970) are of an earlier run in the same folder and left out.
RunPictures read_run_pictures(const std::string& folder, std::size_t bytes, double began);

// Base64 of RFC 4648.
std::string base64(const std::string& bytes);

}  // namespace duet
