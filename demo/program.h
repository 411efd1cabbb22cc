// amp_demo but for main(), so that a test can run it in its own process.
#pragma once

namespace halfstep::demo {

/// Parses, runs, and turns every failure into one line on standard error. Returns the exit status
/// (see run.h). Takes over standard streams and signals, so once per process.
int run_program(int argc, const char* const* argv);

}  // namespace halfstep::demo
