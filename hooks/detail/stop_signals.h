#pragma once

#include <array>
#include <csignal>

namespace duet {

// What asks a run to stop: a terminal and SLURM (the first four), SGE and LSF (SIGUSR2), and a limit of CPU time.
inline constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGUSR2, SIGXCPU};

}  // namespace duet
