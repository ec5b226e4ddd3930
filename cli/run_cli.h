#pragma once

namespace duet {

// The whole `duet` program, for a main() of your own: register your models and datasets, then call this. Returns the
// exit code: 0 done, 1 failed, 2 bad config or usage, or a model that cannot take its batch, 3 bad data, 4 no usable
// checkpoint, 5 diverged, 75 stopped by a signal with state saved. Errors are one line "error: ..." on stderr.
int run_cli(int argc, char** argv);

}  // namespace duet
