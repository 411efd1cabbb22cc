// A sweep: the same run, with the same seed, for several values of one setting.
#pragma once

#include <string>
#include <string_view>

#include "halfstep/demo/report.h"
#include "halfstep/demo/run.h"
#include "halfstep/demo/settings.h"

namespace halfstep::demo {

/// `text` is SETTING=VALUE,VALUE,...; prints a row per value: final loss, share of clipped steps,
/// skips. Writes no files. UsageError if it is anything else, or a value cannot be.
RunEnd sweep(std::string_view text, const GivenSettings& given, Output& output);

}  // namespace halfstep::demo
