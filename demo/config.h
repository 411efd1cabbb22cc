// Settings as a JSON file: one object, a member per setting, named as on the command line. Also the
// settings that a checkpoint carries.
#pragma once

#include <string>

#include "halfstep/demo/settings.h"

namespace halfstep::demo {

/// Parses a config file; comments are allowed. UsageError that names the file for what is not JSON,
/// an unknown or doubled name (with the nearest one that exists), a value of a wrong type, or one
/// that cannot be.
GivenSettings parse_config(const std::string& text, const std::string& file);
/// FileError if it cannot be read; else as parse_config.
GivenSettings read_config(const std::string& path);

/// The text of a config file that says the same.
std::string config_text(const GivenSettings& given);

/// The settings to go on with, when a run with the settings `saved` (in the checkpoint `file`) is
/// resumed and `given` is said. UsageError if they would change the results of the steps to come.
GivenSettings resumed_settings(const GivenSettings& saved, const GivenSettings& given,
                               const std::string& file);

}  // namespace halfstep::demo
