// Warnings: things that are legal and probably not meant. Each kind is reported once.
#pragma once

#include <functional>
#include <string_view>

namespace halfstep {

using WarningHandler = std::function<void(std::string_view message)>;

/// Sends warnings to `handler` from now on and returns the previous one; an empty handler restores
/// the default, which writes to stderr.
WarningHandler set_warning_handler(WarningHandler handler);

/// Reports `message` the first time that `kind` is seen since the program's start or the last
/// set_warning_handler. May be called from any thread.
void warn_once(std::string_view kind, std::string_view message);

}  // namespace halfstep
