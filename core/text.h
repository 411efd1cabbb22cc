// Text from outside in messages: file names, tensor names, what was typed.
#pragma once

#include <string>
#include <string_view>

namespace halfstep {

/// `text` with control characters, and bytes that are not UTF-8, written as \n, \t or \xNN, so that
/// a message stays one readable line.
std::string one_line(std::string_view text);

}  // namespace halfstep
