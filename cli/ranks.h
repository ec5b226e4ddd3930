#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include "cli/config/run_config.h"
#include "distributed/communicator.h"

namespace duet {

// A command that several processes may run together, each with the same arguments.

// Runs `run` with what `load` gives, after all processes that a launcher has started have met. An error while loading,
// and a difference between the configs, end all of them alike; an error of `run` is told to the others.
int run_on_ranks(const LaunchFlags& flags, const std::function<RunConfig()>& load,
                 const std::function<int(RunConfig&)>& run);

// Throws ConfigError if a launcher has started several processes: `command` is for one.
void refuse_ranks(const std::string& command);

// From now on warnings of all ranks are shown: while they are set up, all have the same.
void show_warnings_of_all_ranks();

// "rank 2: " on any but the first of several processes that run_on_ranks() brought together.
const std::string& rank_prefix();

// What rank 0 makes, for all; its error is thrown on all.
std::string from_main(Communicator& ranks, const std::function<std::string()>& make);

// Throws ConfigError on all ranks unless all were called with the same value of this option; empty: without it.
void check_same_option(Communicator& ranks, const std::string& name, const std::string& value);

}  // namespace duet
