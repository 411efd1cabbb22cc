// A checkpoint of amp_demo: the state of a session and the settings of its run, in one file.
#pragma once

#include <string>

#include "halfstep/core/state_dict.h"
#include "halfstep/demo/session.h"
#include "halfstep/demo/settings.h"

namespace halfstep::demo {

struct Checkpoint {
  GivenSettings settings;
  StateDict state;
};

/// Replaces the file in one step; FileError with the old one untouched.
void write_checkpoint(const std::string& path, const Session& session);
/// FileError if it cannot be read, holds no settings of amp_demo, or is not as it was written.
Checkpoint read_checkpoint(const std::string& path);

}  // namespace halfstep::demo
