// The command line of amp_demo.
#pragma once

#include <string>

#include "halfstep/demo/options.h"

namespace halfstep::demo {

struct CommandLine {
  DemoOptions options;
  std::string text;  ///< what --help or --version prints instead of a run; else empty
};

/// UsageError, with a message of one line, for anything that is not understood.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace halfstep::demo
