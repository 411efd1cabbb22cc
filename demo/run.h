// A whole run of amp_demo, from checked options to the summary.
#pragma once

#include "halfstep/demo/options.h"
#include "halfstep/demo/report.h"

namespace halfstep::demo {

/// Trains and prints. Reads and checks all input before the CSV file of an earlier run is replaced.
/// UsageError if options and data do not fit, FileError if a file cannot be read or written.
void run(const DemoOptions& options, Output& output);

}  // namespace halfstep::demo
