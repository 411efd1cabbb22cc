// The run card: a page of Markdown that says what a run did, for the people who use its model.
#pragma once

#include <string>

#include "halfstep/demo/run.h"
#include "halfstep/demo/session.h"

namespace halfstep::demo {

/// The text, from what the session recorded.
std::string run_card(const Session& session, const RunEnd& end);
/// Replaces the file in one step, and makes its folder if that is missing. FileError if it cannot.
void write_run_card(const std::string& path, const Session& session, const RunEnd& end);

}  // namespace halfstep::demo
