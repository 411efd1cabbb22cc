// A whole run of amp_demo: the loop around the training step, and everything that is written.
#pragma once

#include <optional>
#include <string>

#include "halfstep/core/state_dict.h"
#include "halfstep/demo/options.h"
#include "halfstep/demo/report.h"

namespace halfstep::demo {

/// What amp_demo exits with; an interrupted run with 128 + the signal's number.
enum ExitStatus : int {
  kOk = 0,
  kFailure = 1,
  kUsage = 2,
  kAlarm = 3,       ///< too many steps were skipped
  kUnexpected = 4,  ///< an injection did not have the effect that was expected of it
  kSignal = 128,
};

struct RunEnd {
  int status = kOk;
  std::string message = {};  ///< why it is not kOk, one line
  std::string warning = {};  ///< what did not work and does not make the run a failure
};

/// Trains, from the start or from the state of a checkpoint, and prints. Reads and checks all input
/// before the files of an earlier run are replaced. UsageError if options and data do not fit,
/// FileError if a file cannot be read or written: what was written before is complete.
RunEnd run(const DemoOptions& options, const std::optional<StateDict>& resumed, Output& output);

}  // namespace halfstep::demo
