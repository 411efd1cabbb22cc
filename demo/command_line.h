// The command line of amp_demo.
#pragma once

#include <optional>
#include <string>

#include "halfstep/demo/settings.h"

namespace halfstep::demo {

struct CommandLine {
  GivenSettings given;  ///< on the command line, without aliases
  std::string config_path;
  std::string sweep;
  bool print_config = false;
  bool explain = false;
  std::string text;  ///< what --help or --version prints instead of a run; else empty
};

/// UsageError, with a message of one line, for anything that is not understood.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace halfstep::demo
