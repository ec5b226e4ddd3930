#pragma once

#include <string>

namespace duet {

class GraphTrainer;

// What a run leaves beside its log and config for those who look at it later. A run does not end for want of these:
// what cannot be written is a warning.

// environment.json: versions and machine. Removes the graph.json of a run before.
void write_run_environment(const std::string& work_dir);

// graph.json: how many steps were replayed, and of each signature whether it is captured or why not.
void write_graph_coverage(const std::string& work_dir, const GraphTrainer& trainer);

}  // namespace duet
