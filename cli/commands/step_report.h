#pragma once

#include <nlohmann/json_fwd.hpp>
#include "core/trainer.h"

namespace duet {

struct Run;
struct RunConfig;

// What graph mode makes of the first step of the run's training data; the reason why that is unknown, where the data
// cannot be read. For a run in graph mode whose trainer has its hooks.
StepExplanation explain_first_step(const RunConfig& config, Run& run);

// Its fields, for "graph" of `duet explain --json`.
void add_explanation(const StepExplanation& explanation, nlohmann::ordered_json& graph);

// With graph.fallback strict a step that cannot be captured is an error, GraphError.
void refuse_if_strict(const RunConfig& config, const StepExplanation& explanation);

}  // namespace duet
